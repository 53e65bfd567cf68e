"""Java's string hash: what a queue entry keeps of a tag, and the key index of a key.

h = 31*h + c over UTF-16 code units, wrapped to a signed 32-bit number. Text outside the BMP counts as two units.

Java: String.hashCode, MessageExtBrokerInner.tagsString2tagsCode
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000

_FOLDED_BYTES: Final = 64


def _lanes(lane_bytes: int) -> int:
    """A mask of every second lane of this width, in a number of 64 bytes."""
    pair = bytes(lane_bytes) + b"\xff" * lane_bytes
    return int.from_bytes(pair * (_FOLDED_BYTES // len(pair)), "big")


_LANES_1, _LANES_2, _LANES_4, _LANES_8, _LANES_16, _LANES_32 = (_lanes(1 << step) for step in range(6))
_EXCESS_1, _EXCESS_2, _EXCESS_4, _EXCESS_8, _EXCESS_16, _EXCESS_32 = (
    (1 << 8 * lane_bytes) - 31**lane_bytes for lane_bytes in (1, 2, 4, 8, 16, 32)
)
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_FOLDED_BYTES + 1))

MOST_AT_ONCE: Final = 256  # texts that `java_hashes_after` takes


def _low_words(lane_bytes: int) -> int:
    """A mask of the low 4 bytes of every lane of this width, in a number that holds the longest texts there may be."""
    lane = bytes(lane_bytes - 4) + b"\xff" * 4
    return int.from_bytes(lane * (MOST_AT_ONCE * _FOLDED_BYTES // lane_bytes), "big")


_ALL_LANES_1, _ALL_LANES_2 = (
    int.from_bytes((bytes(width) + b"\xff" * width) * (MOST_AT_ONCE * _FOLDED_BYTES // 2 // width), "big")
    for width in (1, 2)
)
_LOW_8, _LOW_16, _LOW_32, _LOW_64 = (_low_words(width) for width in (8, 16, 32, 64))


def java_hash(text: str) -> int:
    return java_hash_after(0, text)


def java_hash_after(prefix_hash: int, text: str | bytes) -> int:
    """The hash of prefix + text, given the prefix's hash: `topic + "#"` is hashed once, each key after it.

    Text that is ASCII may be given as bytes, as a record holds it.
    """
    units: bytes | array[int]
    if type(text) is bytes:
        units = text
    else:
        assert isinstance(text, str)
        try:
            units = text.encode("latin-1")
        except UnicodeEncodeError:
            units = _utf16_units(text)
    count = len(units)
    if count <= _FOLDED_BYTES and type(units) is bytes:
        value = _fold(int.from_bytes(units, "big"), count) + prefix_hash * _POWERS[count]
    else:
        value = prefix_hash
        for unit in units:
            value = (31 * value + unit) & _MASK
    value &= _MASK
    return value - (1 << 32) if value & _SIGN else value


def _fold(value: int, count: int) -> int:
    """The hash of `count` bytes, not yet wrapped, from the number they spell.

    That number is a polynomial in 256 with the bytes as digits; the hash is the same polynomial in 31. A pair a*256 + b becomes
    a*31 + b by taking away a*(256 - 31): all pairs at once, then pairs of pairs, and so on. A few steps on one big number
    replace a loop over the text.
    """
    value -= (value >> 8 & _LANES_1) * _EXCESS_1
    value -= (value >> 16 & _LANES_2) * _EXCESS_2
    value -= (value >> 32 & _LANES_4) * _EXCESS_4
    if count > 8:
        value -= (value >> 64 & _LANES_8) * _EXCESS_8
        value -= (value >> 128 & _LANES_16) * _EXCESS_16
        if count > 32:
            value -= (value >> 256 & _LANES_32) * _EXCESS_32
    return value


def java_hashes_after(prefix_hashes: Sequence[int], texts: Sequence[bytes]) -> list[int] | None:
    """`java_hash_after` of up to MOST_AT_ONCE pairs, not negative but modulo 2**32; None if a text is not ASCII or too long.

    All texts lie side by side in one number, each in a lane of 32 or 64 bytes, so that a step of `_fold` serves all of them.
    From four bytes on only the low word of a lane counts, which keeps the factors small. A third of the time of one by one.
    """
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    width = 32 if longest <= 32 else 64
    if min(lengths) < width:
        texts = [text.rjust(width, b"\0") for text in texts]  # leading zeroes add nothing to a polynomial
    joined = b"".join(texts)
    if longest > _FOLDED_BYTES or not joined.isascii():
        return None
    value = int.from_bytes(joined, "big")
    value -= (value >> 8 & _ALL_LANES_1) * _EXCESS_1
    value -= (value >> 16 & _ALL_LANES_2) * _EXCESS_2
    value = (value & _LOW_8) + (value >> 32 & _LOW_8) * _POWERS[4]
    value = (value & _LOW_16) + (value >> 64 & _LOW_16) * _POWERS[8]
    value = (value & _LOW_32) + (value >> 128 & _LOW_32) * _POWERS[16]
    if width > 32:
        value = (value & _LOW_64) + (value >> 256 & _LOW_64) * _POWERS[32]
    words = array("I", value.to_bytes(len(joined), sys.byteorder))
    # The low word of each lane; a number of little-endian bytes has the last text first.
    step = width // 4
    hashes = words[step - 1 :: step] if sys.byteorder == "big" else words[-step::-step]
    if len(set(prefix_hashes)) == 1 and min(lengths) == longest:
        before = prefix_hashes[0] * _POWERS[longest]
        return [(before + hashed) & _MASK for hashed in hashes]
    return [
        (before * _POWERS[length] + hashed) & _MASK
        for before, length, hashed in zip(prefix_hashes, lengths, hashes, strict=True)
    ]


LONGEST_KNOWN_TAG: Final = 256  # a longer one is not remembered: anyone can write ever other ones
_known_code: Final = lru_cache(maxsize=4096)(java_hash)


def tag_code(tag: str) -> int:
    """What a queue entry holds for `tag`; 0 means no tag."""
    return _known_code(tag) if len(tag) <= LONGEST_KNOWN_TAG else java_hash(tag)


def _utf16_units(text: str) -> array[int]:
    units = array("H")
    units.frombytes(text.encode("utf-16-le", "surrogatepass"))
    if array("H", [1]).tobytes() != b"\x01\x00":
        units.byteswap()
    return units
