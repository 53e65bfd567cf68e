from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import MessageError
from orbitmq.message.batch import BatchMember, decode_batch, encode_batch

# remoting.md, appendix A
APACHE_MEMBER = bytes.fromhex(
    "0000002a 00000000 00000000 00000000 00000002 6869 0012 4b455953016b3102 54414753015461674102"
)
MEMBER = BatchMember(b"hi", b"KEYS\x01k1\x02TAGS\x01TagA\x02")


def test_encodes_a_member_to_the_bytes_that_apache_writes() -> None:
    assert encode_batch([MEMBER]) == APACHE_MEMBER
    assert decode_batch(APACHE_MEMBER) == [MEMBER]


def test_no_members_are_no_bytes() -> None:
    assert encode_batch([]) == b""
    assert decode_batch(b"") == []


@given(
    st.lists(st.builds(BatchMember, st.binary(max_size=50), st.binary(max_size=50), st.integers(-(2**31), 2**31 - 1)))
)
def test_any_batch_survives_the_round_trip(members: list[BatchMember]) -> None:
    assert decode_batch(encode_batch(members)) == members


def test_a_batch_cut_inside_a_member_is_refused() -> None:
    for length in range(1, len(APACHE_MEMBER)):
        with pytest.raises(MessageError):
            decode_batch(APACHE_MEMBER[:length])


@pytest.mark.parametrize(
    ("at", "value", "layout"),
    [(0, 41, ">i"), (0, -5, ">i"), (16, -1, ">i"), (16, 3, ">i"), (22, -1, ">h"), (22, 300, ">h")],
)
def test_lying_lengths_are_refused(at: int, value: int, layout: str) -> None:
    damaged = bytearray(APACHE_MEMBER)
    struct.pack_into(layout, damaged, at, value)
    with pytest.raises(MessageError, match="member 0"):
        decode_batch(bytes(damaged))


def test_properties_too_long_for_their_length_field_are_refused() -> None:
    with pytest.raises(MessageError, match="32767"):
        encode_batch([BatchMember(b"", b"x" * 32_768)])


@given(st.binary(max_size=100))
def test_arbitrary_bytes_never_escape_as_another_error(noise: bytes) -> None:
    with suppress(MessageError):
        decode_batch(noise)
