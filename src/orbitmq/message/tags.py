"""Java's string hash: what a queue entry keeps of a tag, and the key index of a key.

h = 31*h + c over UTF-16 code units, wrapped to a signed 32-bit number. Text outside the BMP counts as two units.

Java: String.hashCode, MessageExtBrokerInner.tagsString2tagsCode
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from operator import mul
from typing import Final

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def _powers_of_31(count: int) -> list[int]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * 31 & _MASK)
    return powers[::-1]


# Highest power first, so that a text of n units pairs with the last n. Longer text takes the plain loop.
_LONGEST: Final = 256
_POWERS: Final = [_powers_of_31(_LONGEST)[_LONGEST - n :] for n in range(_LONGEST + 1)]


def java_hash(text: str) -> int:
    return java_hash_after(0, text)


def java_hash_after(prefix_hash: int, text: str) -> int:
    """The hash of prefix + text, given the prefix's hash: `topic + "#"` is hashed once, each key after it."""
    try:
        units: bytes | array[int] = text.encode("latin-1")
    except UnicodeEncodeError:
        units = _utf16_units(text)
    count = len(units)
    if count <= _LONGEST:
        # One pass in C: sum(c[i] * 31^(n-1-i)) is the same polynomial as the loop's.
        value: int = sum(map(mul, units, _POWERS[count]), prefix_hash * _power_of_31(count))
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


def _power_of_31(exponent: int) -> int:
    return 31 * _POWERS[exponent][0] & _MASK if exponent else 1
