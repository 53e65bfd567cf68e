"""The bloom filter over SQL92 consumers of a topic: which of them may want a message, in a few bits beside its queue entry.

Every `group#topic` has k of m bits; a message's bitmap is the union over all groups whose filter it matches. A group whose bits are
not all set does not want it. The hash is Guava's murmur3_128, so that bitmaps of Apache's broker mean the same here.

Java: BloomFilter, BitsArray
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ALL_64: Final = (1 << 64) - 1
_ALL_32: Final = (1 << 32) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilter:
    def __init__(self, error_percent: int, consumers: int) -> None:
        """Good for so many consumers at an error rate of so many percent."""
        rate = error_percent / 100
        self.hashes = max(1, math.ceil(math.log(rate) / math.log(0.5)))
        bits = math.ceil(consumers * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self.bits = 8 * math.ceil(bits / 8)

    def positions(self, text: str) -> list[int]:
        hash64 = murmur3_128(text.encode())
        low, high = hash64 & _ALL_32, hash64 >> 32
        found = []
        for number in range(1, self.hashes + 1):
            combined = (low + number * high) & _ALL_32
            found.append((combined if combined < 1 << 31 else ~combined & _ALL_32) % self.bits)
        return found

    def bitmap(self, groups: Iterable[Sequence[int]]) -> bytes:
        """The bits of all these groups set."""
        bitmap = bytearray(self.bits // 8)
        for positions in groups:
            for position in positions:
                bitmap[position // 8] |= 1 << position % 8
        return bytes(bitmap)

    def holds(self, bitmap: bytes, positions: Sequence[int]) -> bool:
        """Whether all these bits are set. A bitmap of another geometry says nothing, so it holds everything."""
        return len(bitmap) * 8 != self.bits or all(bitmap[p // 8] >> p % 8 & 1 for p in positions)


def murmur3_128(data: bytes) -> int:
    """The first 64 bits of the hash with seed 0, as Guava's `asLong` gives them (unsigned here)."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _ALL_64
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _ALL_64
    rest = data[whole:]
    h1 ^= _mix1(int.from_bytes(rest[:8], "little")) if rest else 0
    h2 ^= _mix2(int.from_bytes(rest[8:], "little")) if len(rest) > 8 else 0
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _ALL_64
    h2 = (h2 + h1) & _ALL_64
    return (_finished(h1) + _finished(h2)) & _ALL_64


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _ALL_64


def _mix1(value: int) -> int:
    return _rotated(value * _C1 & _ALL_64, 31) * _C2 & _ALL_64


def _mix2(value: int) -> int:
    return _rotated(value * _C2 & _ALL_64, 33) * _C1 & _ALL_64


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _ALL_64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _ALL_64
    return value ^ value >> 33
