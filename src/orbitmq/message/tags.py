"""Java's string hash: what a queue entry keeps of a tag, and the key index of a key.

h = 31*h + c over UTF-16 code units, wrapped to a signed 32-bit number. Text outside the BMP counts as two units.

Java: String.hashCode, MessageExtBrokerInner.tagsString2tagsCode
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Final

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000

# A text of bytes, read as one big number, is a polynomial in 256 with the bytes as its digits; the hash is the same
# polynomial in 31. Folding turns the one into the other, neighbours first: a pair a*256 + b becomes a*31 + b by taking
# away a*(256 - 31), in all pairs at once; then pairs of pairs, and so on. A few big-number steps replace a loop over the text.
_FOLDED_BYTES: Final = 64


def _fold(lane_bytes: int) -> tuple[int, int, int]:
    """For lanes of this width: their bits, a mask of every second lane, and what each lane there is too large by."""
    bits = 8 * lane_bytes
    every_second = int.from_bytes(
        (bytes(lane_bytes) + b"\xff" * lane_bytes) * (_FOLDED_BYTES // lane_bytes // 2), "big"
    )
    return bits, every_second, (1 << bits) - 31**lane_bytes


# As many steps as a text of this length needs: its length, rounded up to a power of two, is halved down to one.
_FOLDS: Final = tuple(
    tuple(_fold(1 << step) for step in range(max(length - 1, 0).bit_length())) for length in range(_FOLDED_BYTES + 1)
)
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_FOLDED_BYTES + 1))


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
        value = int.from_bytes(units, "big")
        for bits, every_second, excess in _FOLDS[count]:
            value -= ((value >> bits) & every_second) * excess
        value += prefix_hash * _POWERS[count]
    else:
        value = prefix_hash
        for unit in units:
            value = (31 * value + unit) & _MASK
    value &= _MASK
    return value - (1 << 32) if value & _SIGN else value


@lru_cache(maxsize=4096)
def tag_code(tag: str) -> int:
    """What a queue entry holds for `tag`; 0 means no tag."""
    return java_hash(tag)


def _utf16_units(text: str) -> array[int]:
    units = array("H")
    units.frombytes(text.encode("utf-16-le", "surrogatepass"))
    if array("H", [1]).tobytes() != b"\x01\x00":
        units.byteswap()
    return units
