"""Messages that are Python objects already, as an Arrow batch: one at a time, for what is rare.

It says in the plainest way what every column holds; decoding.py makes the same columns from raw records, a thousand times as
many at once, and is tested against this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from orbitmq.message import StoredMessage
from orbitmq.message import properties as names
from orbitmq.message.batch import decode_batch
from orbitmq.message.compression import plain_body
from orbitmq.message.properties import decode_properties
from orbitmq.message.sysflags import COMPRESSED, INNER_BATCH, NEED_UNWRAP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orbitmq.spark.schema import Projection

_BATCH: Final = NEED_UNWRAP | INNER_BATCH
_TIME_LIMIT_MS: Final = (2**63 - 1) // 1000


def unwrapped(stored: StoredMessage) -> Iterator[StoredMessage]:
    """The members of a batch that is stored as one record, each with its own place in the queue; else the message itself."""
    if stored.sys_flag & _BATCH != _BATCH:
        yield stored
        return
    for number, member in enumerate(decode_batch(plain_body(stored.body, stored.sys_flag))):
        yield msgspec.structs.replace(
            stored,
            body=member.body,
            flag=member.flag,
            properties=decode_properties(member.properties),
            raw_properties=member.properties,
            queue_offset=stored.queue_offset + number,
            sys_flag=stored.sys_flag & ~(_BATCH | COMPRESSED),
        )


def plain_batch(messages: Sequence[StoredMessage], projection: Projection, broker_name: str) -> pa.RecordBatch:
    """MessageError where a body cannot be inflated."""
    columns = []
    for field in projection.arrow:
        if field.name == "properties" and pa.types.is_map(field.type):
            values: list[Any] = [list(message.properties.items()) for message in messages]
        elif field.name == "brokerName":
            values = [broker_name] * len(messages)
        else:
            values = [_VALUES[field.name](message) for message in messages]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=projection.arrow)


def _microseconds(at_ms: int) -> int:
    return max(-_TIME_LIMIT_MS, min(at_ms, _TIME_LIMIT_MS)) * 1000


_VALUES: Final[dict[str, Callable[[StoredMessage], Any]]] = {
    "topic": lambda message: message.topic,
    "tags": lambda message: message.properties.get(names.TAGS),
    "keys": lambda message: message.properties.get(names.KEYS),
    "body": lambda message: plain_body(message.body, message.sys_flag),
    "properties": lambda message: message.raw_properties.decode("utf-8", "replace"),
    "queueId": lambda message: message.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "msgId": lambda message: message.message_id,
    "bornTimestamp": lambda message: _microseconds(message.born_at_ms),
    "storeTimestamp": lambda message: _microseconds(message.stored_at_ms),
    "flag": lambda message: message.flag,
    "commitLogOffset": lambda message: message.commit_log_offset,
    "offsetMsgId": lambda message: message.offset_id,
    "bornHost": lambda message: message.born_address,
    "storeHost": lambda message: message.store_address,
    "sysFlag": lambda message: message.sys_flag,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "preparedTransactionOffset": lambda message: message.prepared_transaction_offset,
    "storeSize": lambda message: message.size,
    "bodyCrc": lambda message: message.body_crc,
}
