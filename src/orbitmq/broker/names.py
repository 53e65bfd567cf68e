"""Names: what a topic or group may be called, and which names have a meaning of their own.

Java: TopicValidator, MixAll, KeyBuilder
"""

from __future__ import annotations

import re
from typing import Final

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.lease_texts import retry_topic_v1, retry_topic_v2
from orbitmq.storage.files import is_file_name

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_PREFIX: Final = "%LMQ%"  # of light queues, and of groups that read them
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"  # the template of topics that are created by the first send
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_HALF_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

NOT_SENDABLE: Final = frozenset(
    {DELAY_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, DISCARDED_HALF_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
# A foreign message in the timer's own topic would stop Java's timer for good; in that of leases it would be one: of anybody's messages.
_BROKERS_OWN: Final = NOT_SENDABLE | {TIMER_TOPIC}
_REVIVE_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
# What waits there for its time, its decision or its end is of all topics.
_WAITING_PLACES: Final = frozenset({DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, DISCARDED_HALF_TOPIC})
SYSTEM_TOPICS: Final = NOT_SENDABLE | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}

MAX_TOPIC_LENGTH: Final = 127
MAX_INTERNAL_TOPIC_LENGTH: Final = 255  # retry and dead-letter topics, which hold a group's name
MAX_GROUP_LENGTH: Final = 120

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def lease_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Where a lease consumer's failed messages of one topic go, in the newer and the older spelling."""
    return retry_topic_v2(group, topic), retry_topic_v1(group, topic)


def can_be_leased(group: str, topic: str) -> bool:
    """Whether there can be a topic by which a group's failed messages come back. What failed before comes by the one it is in."""
    return topic.startswith(RETRY_PREFIX) or is_file_name(retry_topic_v1(group, topic))


def revive_topic(cluster: str) -> str:
    """What the broker remembers of leases."""
    return _REVIVE_PREFIX + cluster


def members_topic(broker: str) -> str:
    """Brokers of one name see each other by it. A store keeps those of all names that its broker ever had."""
    return f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}"


def is_closed(topic: str) -> bool:
    """Whether no client may send to it: what lies there is the broker's own word."""
    return topic in _BROKERS_OWN or topic.startswith(_REVIVE_PREFIX)


def is_waiting_place(topic: str) -> bool:
    """Whether messages of all topics lie there: who may read it reads past whatever is said of theirs."""
    return topic in _WAITING_PLACES or topic.startswith(_REVIVE_PREFIX)


def group_of_retry_topic(topic: str) -> str:
    """Also of a lease consumer's `%RETRY%<group>+<topic>`."""
    return topic[len(RETRY_PREFIX) :].partition("+")[0]


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def check_topic_name(topic: str) -> None:
    """RequestFailed when no topic can have this name."""
    if not topic.strip():
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if _NAME.fullmatch(topic) is None:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$: {topic[:130]!r}",
        )
    limit = MAX_INTERNAL_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER, f"The specified topic is longer than topic max length {limit}: {len(topic)}"
        )


def check_group_name(group: str) -> None:
    """RequestFailed when no group can have this name."""
    if not group.strip():
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, "The specified group is blank.")
    if _NAME.fullmatch(group) is None:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$: {group[:130]!r}",
        )
    if len(group) > MAX_GROUP_LENGTH:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group is longer than group max length {MAX_GROUP_LENGTH}: {len(group)}",
        )
