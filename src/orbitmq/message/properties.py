r"""A message's properties: `name \x01 value \x02` repeated, and the names everybody knows.

Reading follows Java's parser: an entry without a name, without a value, or without \x01 is not there; the last \x02 may be
missing; of two entries with one name the later counts. Order has no meaning.

Java: MessageDecoder.string2messageProperties, messageProperties2String, MessageConst
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_PROPERTIES_BYTES: Final = 32_767  # the record's length field is a signed 16-bit number

# What the user says
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"  # "false": answer before the message is on disk and on the replica
DELAY: Final = "DELAY"
BUYER_ID: Final = "BUYER_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
INSTANCE_ID: Final = "INSTANCE_ID"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"

# Identity
UNIQUE_KEY: Final = "UNIQ_KEY"
EXTENDED_UNIQUE_INFO: Final = "EXTEND_UNIQ_INFO"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
CLUSTER: Final = "CLUSTER"
REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
MESSAGE_TYPE: Final = "MSG_TYPE"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"

# Retry and dead letters
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

# Transactions
PREPARED: Final = "TRAN_MSG"  # "true": a half message
PRODUCER_GROUP: Final = "PGROUP"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID: Final = "__transactionId__"

# Request and reply
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

# Inner batches and light queues
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
MULTI_DISPATCH_SEPARATOR: Final = ","

# Pop
POP_CHECK_POINT: Final = "POP_CK"
POP_CHECK_POINT_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"

# Timers
TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"

RECORD_CRC: Final = "__CRC32#"

# A user property with one of these names is refused. Java: MessageConst.STRING_HASH_SET
RESERVED: Final = frozenset({
    TRACE_ON, REGION, KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QUEUE_ID, PREPARED, PRODUCER_GROUP,
    "MIN_OFFSET", "MAX_OFFSET", BUYER_ID, ORIGIN_MESSAGE_ID, "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG",
    RECONSUME_TIME, UNIQUE_KEY, MAX_RECONSUME_TIMES, CONSUME_START_TIME, POP_CHECK_POINT, POP_CHECK_POINT_OFFSET,
    FIRST_POP_TIME, PREPARED_QUEUE_OFFSET, "DUP_INFO", EXTENDED_UNIQUE_INFO, INSTANCE_ID, CORRELATION_ID,
    REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MESSAGE_TYPE, MULTI_QUEUE_OFFSET, TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS, TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS,
    TIMER_DELETE_UNIQUE_KEY, TIMER_DELAY_LEVEL, BORN_HOST, BORN_TIMESTAMP, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID,
    RECORD_CRC,
})  # fmt: skip

LONG_DIGITS: Final = 18  # of an offset or a time; eight bytes hold any such number
KEY_SEPARATOR: Final = " "  # between the keys inside KEYS

_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def join_properties(properties: Mapping[str, str]) -> str:
    # Joined, not formatted: members of enums that are texts would be formatted as their names.
    text = _VALUE_END.join([*map(_NAME_END.join, properties.items()), ""])
    if text.count(_VALUE_END) != len(properties) or (
        text.count(_NAME_END) != len(properties) and any(_NAME_END in name for name in properties)
    ):
        raise MessageError(
            "a property holds a separator character", hint=r"\x02 may not stand in names or values, \x01 not in names"
        )
    return text


def encode_properties(properties: Mapping[str, str]) -> bytes:
    return join_properties(properties).encode("utf-8", "replace")  # a lone surrogate becomes "?", as in Java


def extend_properties(text: str, known: Mapping[str, str], added: Mapping[str, str]) -> str:
    """`text` with `added` behind it; `known` is what it says. Written anew only where it would say something twice."""
    if text.count(_VALUE_END) == len(known) and text.endswith(_VALUE_END) and known.keys().isdisjoint(added):
        return text + join_properties(added)
    return join_properties({**known, **added})


def decode_properties(data: bytes | str) -> dict[str, str]:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    properties = {}
    for entry in text.split(_VALUE_END):
        name, _, value = entry.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def property_number(value: bytes | str | None, default: int, most_digits: int = 9) -> int:
    """What a property says, if it says a number that is not negative and has no more digits.

    A producer can put anything there: `isdigit` alone lets "\N{SUPERSCRIPT TWO}" pass, and five thousand digits, and both make `int` raise.
    """
    if value and len(value) <= most_digits and value.isascii() and value.isdigit():
        return int(value)
    return default


def property_finder(name: str) -> Callable[[bytes], bytes | None]:
    """A function that takes one value out of the encoded text, as `decode_properties(text).get(name)` would.

    It does not build the map: a record is indexed by three of its properties, and has a dozen.
    """
    first = name.encode() + b"\x01"
    later = b"\x02" + first
    length = len(first)

    def find(data: bytes) -> bytes | None:
        end = len(data)
        while True:
            at = data.rfind(later, 0, end) + 1
            if not at and not data.startswith(first, 0, end):
                return None
            stop = data.find(b"\x02", at + length, end)
            value = data[at + length : stop if stop >= 0 else end]
            if value or not at:
                return value or None
            # An empty value is no value; an earlier entry may have one. A loop: a producer may write thousands of them.
            end = at - 1

    return find
