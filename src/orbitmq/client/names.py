"""Names of topics and groups: which are allowed, which belong to the system, which derive from a group's.

Java: Validators, TopicValidator, MixAll
"""

from __future__ import annotations

import re
from typing import Final

from orbitmq.errors import ConfigError, MessageError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_PREFIX: Final = "%LMQ%"  # of light queues, which stand in no route
TEMPLATE_TOPIC: Final = "TBW102"  # its queues are the model for topics that sending creates
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
MAX_TOPIC: Final = 127
MAX_GROUP: Final = 120

_SYSTEM_PREFIX: Final = "rmq_sys_"
# Only the broker writes to these.
_NOT_SENDABLE: Final = frozenset({
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
})  # fmt: skip
_SYSTEM: Final = _NOT_SENDABLE | {TEMPLATE_TOPIC, "BenchmarkTest", TRACE_TOPIC, "CHECKPOINT_TOPIC"}
_RESERVED_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_WHAT_IS_ALLOWED: Final = "letters, digits and the characters % | _ - are allowed"


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def is_system_topic(topic: str) -> bool:
    return topic in _SYSTEM or topic.startswith(_SYSTEM_PREFIX)


def check_topic(topic: str) -> None:
    """MessageError when no broker would take a message for this topic."""
    check_topic_name(topic)
    if topic in _NOT_SENDABLE:
        raise MessageError(f"topic {topic!r} belongs to the broker; nobody else may send to it", hint="choose another")


def check_topic_name(topic: str) -> None:
    """MessageError when no broker has a topic of this name. All may be read: TRANS_CHECK_MAX_TIME_TOPIC, say."""
    if not isinstance(topic, str) or not topic or _ALLOWED(topic) is None:
        raise MessageError(f"topic {topic!r} is not a valid name", hint=_WHAT_IS_ALLOWED)
    if len(topic) > MAX_TOPIC:
        raise MessageError(f"topic {topic!r} has {len(topic)} characters", hint=f"up to {MAX_TOPIC} are allowed")


def check_group(group: str) -> None:
    if not isinstance(group, str) or not group or _ALLOWED(group) is None:
        raise ConfigError(f"group {group!r} is not a valid name", hint=_WHAT_IS_ALLOWED)
    if len(group) > MAX_GROUP:
        raise ConfigError(f"group {group!r} has {len(group)} characters", hint=f"up to {MAX_GROUP} are allowed")
    if group in _RESERVED_GROUPS:
        raise ConfigError(f"group {group!r} is reserved", hint="choose a name of your own")
