"""Every frame recorded from Apache's programs is read and written again without the loss of a byte."""

from __future__ import annotations

import struct

import pytest

from orbitmq.errors import HeaderError
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, Frame, FrameDecoder
from tests.golden_frames import GoldenFrame, golden_frames

pytestmark = pytest.mark.parametrize("golden", golden_frames(), ids=str)


def frame_of(golden: GoldenFrame) -> Frame:
    (frame,) = FrameDecoder().feed(golden.data)
    return frame


def rebuilt(command: Command, *, had_fields: bool) -> Command:
    """The same command as a program would make it: from the values alone, without the bytes they came in."""
    return Command(
        command.code,
        flag=command.flag,
        opaque=command.opaque,
        fields=dict(command.fields) if had_fields else None,
        body=command.body,
        remark=command.remark,
        language=command.language,
        version=command.version,
    )


def packed_keys(frame: Frame) -> list[bytes]:
    """The keys of a binary header in order, duplicates included."""
    header = frame.header
    (remark_length,) = struct.unpack_from(">i", header, 13)
    at = 17 + remark_length + 4
    keys = []
    while at < len(header):
        (key_length,) = struct.unpack_from(">h", header, at)
        keys.append(header[at + 2 : at + 2 + key_length])
        (value_length,) = struct.unpack_from(">i", header, at + 2 + key_length)
        at += 2 + key_length + 4 + value_length
    return keys


def test_a_recorded_frame_is_what_its_label_says(golden: GoldenFrame) -> None:
    command = commands.decode(frame_of(golden))
    assert command.code == golden.code
    assert command.is_response == golden.is_response
    if not golden.is_response:
        assert command.is_oneway == ("oneway" in golden.note or "one-way" in golden.note)


def test_a_forwarded_command_keeps_its_bytes(golden: GoldenFrame) -> None:
    frame = frame_of(golden)
    assert commands.encode(commands.decode(frame), frame.codec) == golden.data


def test_a_command_built_from_the_same_values_has_the_same_bytes(golden: GoldenFrame) -> None:
    frame = frame_of(golden)
    command = commands.decode(frame)
    had_fields = b'"extFields":' in frame.header if frame.codec != CODEC_BINARY else bool(command.fields)
    again = commands.encode(rebuilt(command, had_fields=had_fields), frame.codec)
    if frame.codec == CODEC_BINARY and len(set(packed_keys(frame))) < len(packed_keys(frame)):
        # Java wrote one key twice, first from the header object and then from the map; a map has it once. The meaning
        # is kept, the second copy is not.
        assert commands.decode(FrameDecoder().feed(again)[0]).fields == command.fields
        assert len(again) < len(golden.data)
    else:
        assert again == golden.data


def test_the_other_header_codec_says_the_same(golden: GoldenFrame) -> None:
    command = commands.decode(frame_of(golden))
    if command.code > 0x7FFF:
        with pytest.raises(HeaderError, match="does not fit the binary header"):
            commands.encode(command, CODEC_BINARY)
    for codec in (0, 1) if command.code <= 0x7FFF else (0,):
        crossed = commands.decode(FrameDecoder().feed(commands.encode(rebuilt(command, had_fields=True), codec))[0])
        assert (crossed.code, crossed.flag, crossed.opaque, crossed.version, crossed.language) == (
            command.code,
            command.flag,
            command.opaque,
            command.version,
            command.language,
        )
        # An empty text and an absent one are the same thing in the binary header.
        assert (crossed.remark or None) == (command.remark or None)
        assert dict(crossed.fields) == dict(command.fields)
        assert crossed.body == command.body
