"""The two ids of a message: the one its producer makes, and the one that says where it is stored.

    unique id    address (4 or 16), pid (2), loader (4), ms since the start of the month (4), counter (2)
    offset id    store host (8 or 20), commit-log offset (8)

Both are written as upper-case hex.

Java: MessageClientIDSetter, MessageDecoder.createMessageId
"""

from __future__ import annotations

import itertools
import struct
import time
from typing import TYPE_CHECKING, Final

from orbitmq.errors import MessageError
from orbitmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.clock import Clock

_OFFSET_BYTES: Final = 8
_CLOCK_STEP_BACK_MS: Final = 1_000_000  # up to this far before the month, the clock was merely set back a little
_TAIL: Final = struct.Struct(">IH")  # ms since the start of the month, counter


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    return f"{store_host.hex().upper()}{commit_log_offset:016X}"


def parse_offset_message_id(message_id: str) -> tuple[bytes, int]:
    """Packed store host and commit-log offset."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError as error:
        raise MessageError(f"{message_id!r} is not an offset message id") from error
    if len(data) not in (IPV4_HOST_BYTES + _OFFSET_BYTES, IPV6_HOST_BYTES + _OFFSET_BYTES):
        raise MessageError(f"{message_id!r} is not an offset message id: 32 or 56 hex digits are")
    return data[:-_OFFSET_BYTES], int.from_bytes(data[-_OFFSET_BYTES:], "big", signed=True)


class UniqueIds:
    """Makes the ids of one producer process: `next(ids)`. Not for use from several threads at once."""

    __slots__ = ("_clock", "_counter", "_month_end_ms", "_month_start_ms", "_prefix")

    def __init__(self, clock: Clock, address: bytes, pid: int, loader: int, counter_start: int = 0) -> None:
        """`address` is the packed local IP (4 or 16 bytes); `loader` any 32-bit number that tells processes apart."""
        if len(address) not in (4, 16):
            raise MessageError(f"a packed IP address has 4 or 16 bytes, not {len(address)}")
        tail = (pid & 0xFFFF).to_bytes(2, "big") + (loader & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = (address + tail).hex().upper()
        self._clock = clock
        self._counter = itertools.count(counter_start)
        self._month_start_ms, self._month_end_ms = _local_month(clock.now_ms())

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        tail = _TAIL.pack(self._since_month_ms(), next(self._counter) & 0xFFFF)
        return self._prefix + tail.hex().upper()

    def take(self, count: int) -> list[str]:
        """Many at once, up to 65,536: they share their moment."""
        if not count:
            return []
        head = self._prefix + f"{self._since_month_ms():08X}"
        numbers = [number & 0xFFFF for number in itertools.islice(self._counter, count)]
        tails = struct.pack(f">{count}H", *numbers).hex(" ", 2).upper()
        return f" {tails}".replace(" ", f" {head}").split()

    def _since_month_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _local_month(now_ms)
        since_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_BACK_MS < since_ms < 0:
            since_ms = 0
        return since_ms & 0xFFFFFFFF


def _local_month(at_ms: int) -> tuple[int, int]:
    """The first instant of the month around `at_ms`, and that of the next, in the local time zone."""
    there = time.localtime(at_ms / 1000)
    year, month = there.tm_year, there.tm_mon
    next_year, next_month = (year + 1, 1) if month == 12 else (year, month + 1)
    start = time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((next_year, next_month, 1, 0, 0, 0, 0, 0, -1))
    return int(start) * 1000, int(end) * 1000
