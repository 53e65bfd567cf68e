"""SEND_MESSAGE_V2's binary header read in one go; see whole_request.py.

Java writes the fields in the order of their letters. What stands before `e` (producer, topic) and behind `i` (flags, broker) is
the same for all messages of a producer, so it is read once and then known by its bytes:

    fixed part │ a b c d │ e f g h i │ j k l m n
                 known     new         known

Java: SendMessageRequestHeaderV2.encode
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from orbitmq.errors import HeaderError
from orbitmq.protocol.header_binary import decode_binary_fields
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.protocol.whole_request import WholeRequest

_FIXED: Final = struct.Struct(
    ">h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
    "i"  # length of the fields
)
# Each field: key length 1, the key, the upper half of the value's length, which is 0, its lower half, the value. Numbers that
# match are in range, and texts hold no zero byte; what does not match is for the ordinary reader to judge.
_NEW: Final = re.compile(
    rb"\0\x01e\0\0(..)([0-9]{1,9})"
    rb"\0\x01f\0\0(..)([0-9]{1,9})"
    rb"\0\x01g\0\0(..)([0-9]{1,18})"
    rb"\0\x01h\0\0(..)([0-9]{1,9})"
    rb"\0\x01i\0\0(..)([^\0]+)",
    re.DOTALL,
)
_NEW_START: Final = b"\0\x01e\0\0"
_five_lengths: Final = struct.Struct(">5H").pack
_HEAD_KEYS: Final = ["a", "b", "c", "d"]
_TAIL_KEYS: Final = frozenset("jklmn")
_MOST_KNOWN: Final = 10_000
_LONGEST_KNOWN_BYTES: Final = 1024  # anyone can write ever other ones
_UNUSUAL: Final = "not the usual binary header of a send"


class _Head(NamedTuple):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int


class _Tail(NamedTuple):
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    bname: str | None


class ShortSendReader:
    """Callable with a header. HeaderError for anything unusual, which is not to say that it is wrong."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}
        self._tails: dict[bytes, _Tail] = {}

    def __call__(self, header: bytes) -> WholeRequest[SendMessageV2]:
        new_at = header.find(_NEW_START, _FIXED.size)
        found = _NEW.match(header, new_at) if new_at >= 0 else None
        if found is None:
            raise HeaderError(_UNUSUAL)
        code, _, version, opaque, flag, remark_length, fields_length = _FIXED.unpack_from(header)
        l1, queue_id, l2, sys_flag, l3, born, l4, message_flag, l5, properties = found.groups()
        lengths = _five_lengths(len(queue_id), len(sys_flag), len(born), len(message_flag), len(properties))
        if remark_length or fields_length != len(header) - _FIXED.size or l1 + l2 + l3 + l4 + l5 != lengths:
            raise HeaderError(_UNUSUAL)
        head, tail = header[_FIXED.size : new_at], header[found.end() :]
        group, topic, default_topic, queues = self._heads.get(head) or self._learn_head(head)
        reconsumed, unit_mode, max_reconsumed, is_batch, broker = self._tails.get(tail) or self._learn_tail(tail)
        fields = SendMessageV2(
            producer_group=group,
            topic=topic,
            default_topic=default_topic,
            default_topic_queue_nums=queues,
            queue_id=int(queue_id),
            sys_flag=int(sys_flag),
            born_timestamp=int(born),
            flag=int(message_flag),
            properties=properties.decode(),
            reconsume_times=reconsumed,
            unit_mode=unit_mode,
            max_reconsume_times=max_reconsumed,
            batch=is_batch,
            bname=broker,
        )
        return WholeRequest(code, fields, opaque, flag, version)

    def _learn_head(self, packed: bytes) -> _Head:
        texts = decode_binary_fields(packed)
        if list(texts) != _HEAD_KEYS or not all(texts.values()):
            raise HeaderError(_UNUSUAL)
        read = _read_with(texts)
        head = _Head(read.producer_group, read.topic, read.default_topic, read.default_topic_queue_nums)
        if len(packed) <= _LONGEST_KNOWN_BYTES:
            if len(self._heads) >= _MOST_KNOWN:
                self._heads.clear()
            self._heads[packed] = head
        return head

    def _learn_tail(self, packed: bytes) -> _Tail:
        texts = decode_binary_fields(packed)
        if not texts.keys() <= _TAIL_KEYS:
            raise HeaderError(_UNUSUAL)
        read = _read_with(texts)
        tail = _Tail(read.reconsume_times, read.unit_mode, read.max_reconsume_times, read.batch, read.bname)
        if len(packed) <= _LONGEST_KNOWN_BYTES:
            if len(self._tails) >= _MOST_KNOWN:
                self._tails.clear()
            self._tails[packed] = tail
        return tail


def _read_with(texts: dict[str, str]) -> SendMessageV2:
    """These fields as every header's are read, in the company of others that matter here no more than they are wrong."""
    others = {"a": "-", "b": "-", "c": "-", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    # An empty text means that there is none.
    return SendMessageV2.from_fields(others | {key: text for key, text in texts.items() if text})
