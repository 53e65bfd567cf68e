"""Cutting a byte stream into frames, however it arrives, and refusing what cannot be a frame."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import FrameError
from orbitmq.protocol.frame import (
    CODEC_BINARY,
    CODEC_JSON,
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    frame_bytes,
    frame_prefix,
)
from tests.golden_frames import golden_frames

FRAMES = [
    Frame(CODEC_JSON, b"{}", b"hello"),
    Frame(CODEC_BINARY, b"", b""),
    Frame(CODEC_JSON, b'{"code":1}', b""),
    Frame(CODEC_BINARY, b"x" * 300, b"\x00" * 70),
]
STREAM = b"".join(frame_bytes(frame.header, frame.body, frame.codec) for frame in FRAMES)


def decode(*pieces: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert decoder.failure is None
    assert not decoder.is_waiting
    return frames


def test_decodes_a_whole_stream_at_once() -> None:
    assert decode(STREAM) == FRAMES


def test_decodes_byte_by_byte() -> None:
    assert decode(*[STREAM[at : at + 1] for at in range(len(STREAM))]) == FRAMES


def test_decodes_cut_in_two_at_every_byte() -> None:
    for at in range(len(STREAM) + 1):
        assert decode(STREAM[:at], STREAM[at:]) == FRAMES, at


def test_an_unfinished_frame_is_joined_with_what_ends_it_large_or_small() -> None:
    for body in (b"small", bytes(range(256)) * 1200):
        first = frame_bytes(b'{"code":1}', body, CODEC_BINARY)
        stream = first + frame_bytes(b"{}", b"behind")
        for at in {8, 12, 18, 19, len(first) // 2, len(first) - 1}:
            decoder = FrameDecoder()
            assert decoder.feed(stream[:at]) == []
            assert decoder.joined(stream[at : len(first) - 1]) == b""
            whole = decoder.joined(stream[len(first) - 1 :])
            assert whole == stream
            assert not decoder.is_waiting
            assert [frame.body for frame in decoder.feed(whole)] == [body, b"behind"]


def test_decodes_cut_in_three_around_every_frame_border() -> None:
    borders = [0]
    for frame in FRAMES:
        borders.append(borders[-1] + 8 + len(frame.header) + len(frame.body))
    near = sorted({at for border in borders for at in range(border - 9, border + 10) if 0 <= at <= len(STREAM)})
    for first in near:
        for second in near:
            if first <= second:
                assert decode(STREAM[:first], STREAM[first:second], STREAM[second:]) == FRAMES, (first, second)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_decodes_however_the_stream_is_cut(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]
    assert decode(*[STREAM[a:b] for a, b in itertools.pairwise(borders)]) == FRAMES


LARGE = [
    Frame(CODEC_JSON, b'{"code":0}', bytes(range(256)) * 600),
    FRAMES[0],
    Frame(CODEC_BINARY, b"y" * 5000, b"z" * 131_072),
    Frame(CODEC_JSON, b"{}", bytes(range(255, -1, -1)) * 900),
]
LARGE_STREAM = b"".join(frame_bytes(frame.header, frame.body, frame.codec) for frame in LARGE)


@given(cuts=st.lists(st.integers(0, len(LARGE_STREAM)), max_size=40))
def test_large_frames_come_out_however_their_stream_is_cut(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(LARGE_STREAM)]
    assert decode(*[LARGE_STREAM[a:b] for a, b in itertools.pairwise(borders)]) == LARGE


@pytest.mark.parametrize("piece", [97, 4095, 4096, 65_536])
def test_large_frames_come_out_of_pieces_of_one_size(piece: int) -> None:
    assert decode(*[LARGE_STREAM[at : at + piece] for at in range(0, len(LARGE_STREAM), piece)]) == LARGE


@given(data=st.data())
def test_recorded_frames_come_out_however_their_stream_is_cut(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(golden_frames()), min_size=1, max_size=5))
    stream = b"".join(golden.data for golden in chosen)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    borders = [0, *sorted(cuts), len(stream)]
    frames = decode(*[stream[a:b] for a, b in itertools.pairwise(borders)])
    assert [frame_bytes(frame.header, frame.body, frame.codec) for frame in frames] == [g.data for g in chosen]


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (struct.pack(">II", MAX_FRAME_BYTES - 3, 0), "limit"),
        (struct.pack(">iI", -1, 0), "limit"),
        (struct.pack(">iI", -(1 << 31), 0), "limit"),
        (struct.pack(">II", 0, 0), "announces a header"),
        (struct.pack(">II", 3, 0), "announces a header"),
        (struct.pack(">II", 4, 1), "announces a header of 1"),
        (struct.pack(">II", 100, 97), "announces a header of 97"),
        (struct.pack(">II", 100, 0xFFFFFF), "announces a header"),
        (struct.pack(">II", 100, 2 << 24), "codec 2 is unknown"),
        (struct.pack(">II", 100, 0xFF << 24), "codec 255 is unknown"),
        (b"GET / HTTP/1.1\r\n", "limit"),
    ],
    ids=repr,
)
def test_refuses_what_cannot_be_a_frame_and_keeps_the_frames_before_it(prefix: bytes, reason: str) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(STREAM + prefix) == FRAMES
    assert decoder.failure is not None
    assert reason in str(decoder.failure)
    assert decoder.feed(STREAM) == []  # nothing after it means anything


def test_refuses_only_once_the_whole_prefix_is_there() -> None:
    decoder = FrameDecoder()
    prefix = struct.pack(">II", 100, 0xFF << 24)
    for at in range(7):
        assert decoder.feed(prefix[at : at + 1]) == []
        assert decoder.failure is None
    decoder.feed(prefix[7:])
    assert decoder.failure is not None


def test_the_largest_frame_is_read_and_one_byte_more_is_not() -> None:
    header = b"{}"
    body = bytes(MAX_FRAME_BYTES - 8 - len(header))
    assert decode(frame_bytes(header, body)) == [Frame(CODEC_JSON, header, body)]
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">II", MAX_FRAME_BYTES - 4 + 1, len(header)))
    assert decoder.failure is not None


def test_never_writes_a_frame_that_no_peer_accepts() -> None:
    frame_prefix(10, MAX_FRAME_BYTES - 8 - 10)
    with pytest.raises(FrameError, match="larger than"):
        frame_prefix(10, MAX_FRAME_BYTES - 8 - 9)


def test_a_limit_of_ones_own_counts_the_length_word_too() -> None:
    frame = frame_bytes(b"{}", b"12345")
    assert len(FrameDecoder(len(frame)).feed(frame)) == 1
    tight = FrameDecoder(len(frame) - 1)
    assert tight.feed(frame) == []
    assert tight.failure is not None


def test_a_frame_that_arrives_byte_by_byte_costs_no_more_than_its_size() -> None:
    size = 300_000
    frame = frame_bytes(b"{}", bytes(size))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(len(frame) - 1):
            decoder.feed(frame[at : at + 1])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(decoder.held) == len(frame) - 1
    assert held < 2 * size
    assert len(decoder.feed(frame[-1:])) == 1


def test_example_of_the_protocol_document() -> None:
    header = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert frame_bytes(header, b"") == bytes.fromhex("0000007f0000007b") + header


def test_a_single_frame_with_an_unknown_codec_is_left_to_feed() -> None:
    frame = frame_bytes(b"header", b"body", 7)
    decoder = FrameDecoder()
    assert decoder.only_frame(frame) == 0
    assert decoder.feed(frame) == []
    assert decoder.failure is not None
