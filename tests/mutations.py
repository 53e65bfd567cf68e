"""Requests a little damaged, in ways that readers of headers have views on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

BITS = (
    b"",
    b"\0",
    b'"',
    b"\\",
    b"-",
    b"9",
    b"99999999999",
    b"true",
    b"null",
    b"{",
    b",",
    b"\xff",
    b"\x02",
    b"\x01",
    b" ",
)


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """One to three bytes behind the frame's first eight replaced by something else; the lengths there are right again."""
    length = int.from_bytes(frame[5:8], "big")
    header, body = bytearray(frame[8 : 8 + length]), frame[8 + length :]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(header))
        header[at : at + chance.randint(0, 3)] = chance.choice((*BITS, bytes([chance.randrange(256)])))
    prefix = (4 + len(header) + len(body)).to_bytes(4, "big") + frame[4:5] + len(header).to_bytes(3, "big")
    return prefix + bytes(header) + body
