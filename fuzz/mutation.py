"""Small damages to recorded bytes, of the kind that finds faults in decoders: driven by a `Random`, so repeatable."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_TELLING_BYTES: Final = b'\x00\x01\x02\x16\x7f\x80\xff\r\n "{}[]:,\\xuP9-'
_TELLING_NUMBERS: Final = (-(1 << 31), -1, 0, 1, 3, 4, 5, 0xFFFF, 0xFFFFFF, 1 << 24, (1 << 31) - 1)
_TELLING_TEXTS: Final = (
    b'"$ref":"$"', b"null", b"9" * 400, b"{" * 200, b"\\u000a", b"\\ud800", b"\xff\xfe", b"\x78\x9c", b'{"a":1}:',
)  # fmt: skip


def mutated(corpus: Sequence[bytes], random: random.Random, most_damages: int = 6) -> bytes:
    """A few members of the corpus in a row, damaged here and there."""
    data = bytearray(b"".join(random.choice(corpus) for _ in range(random.choice((1, 1, 1, 2, 3)))))
    for _ in range(random.randint(0, most_damages)):
        random.choice(_DAMAGES)(data, random)
    return bytes(data)


def pieces(data: bytes, random: random.Random) -> list[bytes]:
    """The same bytes, cut at random places."""
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.choice((0, 0, 1, 3, 8))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _change_byte(data: bytearray, random: random.Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(_TELLING_BYTES)


def _flip_bit(data: bytearray, random: random.Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _change_number(data: bytearray, random: random.Random) -> None:
    if len(data) >= 4:
        # Lengths stand at the start and in the binary header; elsewhere four odd bytes do no harm.
        at = random.choice((0, 4, 8, 21, random.randrange(len(data) - 3)))
        if at + 4 <= len(data):
            data[at : at + 4] = struct.pack(">I", random.choice(_TELLING_NUMBERS) & 0xFFFFFFFF)


def _insert_text(data: bytearray, random: random.Random) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.choice(_TELLING_TEXTS)


def _remove_some(data: bytearray, random: random.Random) -> None:
    at = random.randint(0, len(data))
    del data[at : at + random.choice((1, 2, 4, 16, 200))]


def _repeat_some(data: bytearray, random: random.Random) -> None:
    at = random.randint(0, len(data))
    data[at:at] = data[at : at + random.choice((1, 4, 30, 300))]


def _cut_off(data: bytearray, random: random.Random) -> None:
    del data[random.randint(0, len(data)) :]


def _mend_lengths(data: bytearray, random: random.Random) -> None:
    """Make the frame's own length true again, so that damage further in is reached."""
    if len(data) >= 8:
        data[0:4] = struct.pack(">I", len(data) - 4)


_DAMAGES: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    _change_byte, _flip_bit, _change_number, _insert_text, _remove_some, _repeat_some, _cut_off,
    _mend_lengths, _mend_lengths,
)  # fmt: skip
