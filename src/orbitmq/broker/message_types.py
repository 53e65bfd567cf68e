"""Topics that take one kind of message only, by their attribute `message.type`.

Apache checks this in its proxy; here every door does. Ordered topics take messages without a group as well: clients that
speak this protocol choose the queue themselves.

Java: TopicMessageType
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.properties import decode_properties
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orbitmq.message.batch import BatchMember
    from orbitmq.storage.tables import TopicConfig

ATTRIBUTE: Final = "message.type"
NORMAL: Final = "NORMAL"
FIFO: Final = "FIFO"
DELAY: Final = "DELAY"
TRANSACTION: Final = "TRANSACTION"
_TAKES_ALL: Final = frozenset({"UNSPECIFIED", "MIXED", ""})
_DELAYING: Final = (keys.DELAY, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS)


def message_type(properties: Mapping[str, str]) -> str:
    if properties.get(keys.PREPARED, "").lower() == "true":
        return TRANSACTION
    if any(key in properties for key in _DELAYING):
        return DELAY
    return FIFO if keys.SHARDING_KEY in properties else NORMAL


def check_message_type(topic: TopicConfig, properties: str) -> None:
    """RequestFailed when the topic is for another kind of message."""
    if topic.attributes.get(ATTRIBUTE, "") not in _TAKES_ALL:
        _check_kind(topic, message_type(decode_properties(properties)), "this one is")


def check_batch_type(topic: TopicConfig, members: Iterable[BatchMember]) -> None:
    """The same for a batch, whose members neither wait nor belong to a transaction, whatever they say."""
    if topic.attributes.get(ATTRIBUTE, "") not in _TAKES_ALL:
        kinds = {FIFO if keys.SHARDING_KEY in decode_properties(each.properties) else NORMAL for each in members}
        for kind in kinds:
            _check_kind(topic, kind, "this batch has")


def _check_kind(topic: TopicConfig, kind: str, what: str) -> None:
    wanted = topic.attributes[ATTRIBUTE]
    if kind != wanted and not (wanted == FIFO and kind == NORMAL):
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"topic {topic.topic_name} takes {wanted} messages, {what} {kind}",
            hint=f"send it elsewhere, or give the topic +{ATTRIBUTE}=MIXED",
        )
