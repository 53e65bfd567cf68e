"""Headers read in one go say what the ordinary reader says of them; what is unusual they leave alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from orbitmq.errors import HeaderError, OrbitError
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, Frame, FrameDecoder
from orbitmq.protocol.header_binary import encode_binary_fields, encode_binary_header
from orbitmq.protocol.headers.pull import PullMessage
from orbitmq.protocol.headers.send import SendMessage, SendMessageV2
from orbitmq.protocol.short_send_binary import ShortSendReader
from orbitmq.protocol.whole_request import UNREADABLE, WholeRequest, reader
from tests.golden_frames import golden_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.headers.base import Header

SHORT_CODES = (310, 320)
READERS: dict[tuple[int, int], tuple[Callable[[bytes], Any], type[Header]]] = {
    (10, CODEC_JSON): (reader(SendMessage), SendMessage),
    (11, CODEC_JSON): (reader(PullMessage), PullMessage),
    **{(code, CODEC_JSON): (reader(SendMessageV2), SendMessageV2) for code in SHORT_CODES},
    **{(code, CODEC_BINARY): (ShortSendReader(), SendMessageV2) for code in SHORT_CODES},
}
RECORDED = [
    (f"{golden.sender}: {golden.note}", frame)
    for golden in golden_frames()
    for frame in FrameDecoder().feed(golden.data)
    if not golden.is_response and (golden.code, frame.codec) in READERS
]
USUAL = {
    "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "7",
    "i": "UNIQ_KEY\x01k\x02", "j": "0", "k": "false", "m": "false", "n": "broker",
}  # fmt: skip


def binary(fields: dict[str, str], code: int = 310, remark: str | None = None) -> bytes:
    return encode_binary_header(code, "JAVA", 453, 5, 0, remark, encode_binary_fields(fields))


def ordinary(frame: Frame, header_type: type[Header]) -> WholeRequest[Header]:
    command = commands.decode(frame)
    return WholeRequest(command.code, command.read(header_type), command.opaque, command.flag, command.version)


@pytest.mark.parametrize(("name", "frame"), RECORDED, ids=[name for name, _ in RECORDED])
def test_a_recorded_request_is_read_as_ever_or_not_at_all(name: str, frame: Frame) -> None:
    code = commands.decode(frame).code
    read, header_type = READERS[code, frame.codec]
    for _ in range(2):  # the second time from what the first one learnt
        try:
            whole = read(frame.header)
        except UNREADABLE:
            return
        assert msgspec.structs.replace(whole, language=None, remark=None) == ordinary(frame, header_type)


def test_most_of_what_java_clients_sent_is_usual() -> None:
    taken = 0
    for _, frame in RECORDED:
        try:
            READERS[commands.decode(frame).code, frame.codec][0](frame.header)
        except UNREADABLE:
            continue
        taken += 1
    assert taken >= len(RECORDED) - 4  # signed requests and a batch without properties write their fields otherwise


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"e": "12", "g": "1"},
        {"a": "группа", "i": "ключ\x01значение\x02"},
        {"j": "3", "k": "true", "l": "16", "m": "true"},
        {"n": ""},
        {"i": "x" * 32_000},
        {"b": "topic\x01e"},
    ],
)
def test_usual_binary_headers_are_read_as_ever(changes: dict[str, str]) -> None:
    header = binary(dict(sorted({**USUAL, **changes}.items())))
    read = ShortSendReader()
    expected = ordinary(Frame(CODEC_BINARY, header, b""), SendMessageV2)
    assert read(header) == expected
    assert read(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        b"",
        binary({}),
        binary(USUAL)[:-1],
        binary(USUAL) + b"\0",
        binary(USUAL, remark="hello"),
        binary({**USUAL, "z": "a field nobody knows"}),
        binary(dict(reversed(USUAL.items()))),
        *(binary({key: text for key, text in USUAL.items() if key != missing}) for missing in "abcdefghi"),
        *(binary({**USUAL, empty: ""}) for empty in "abcdefghi"),
        *(binary({**USUAL, number: "x"}) for number in "defghj"),
        binary({**USUAL, "e": "-1"}),
        binary({**USUAL, "e": "99999999999"}),
        binary({**USUAL, "i": "a\0b"}),
        binary({**USUAL, "b": "a\0b\x01e"}),
        binary(USUAL).replace(b"e\0\0\0\x013", b"e\0\0\0\x023"),  # a length that lies
        binary(USUAL).replace(b"b\0\0\0\x05topic", b"b\0\0\0\x04topic"),
        binary(USUAL).replace(b"topic", b"top\xffc"),
        binary(USUAL).replace(b"UNIQ_KEY", b"UNIQ\xffKEY"),
    ],
)
def test_unusual_binary_headers_are_left_to_the_ordinary_reader_or_read_as_it_reads(header: bytes) -> None:
    try:
        whole = ShortSendReader()(header)
    except UNREADABLE:
        return
    assert whole == ordinary(Frame(CODEC_BINARY, header, b""), SendMessageV2)


def test_every_cut_of_a_binary_header_is_refused_without_a_crash() -> None:
    header, read = binary(USUAL), ShortSendReader()
    read(header)
    for end in range(len(header)):
        with pytest.raises(UNREADABLE):
            read(header[:end])
        with pytest.raises((OrbitError, *UNREADABLE)):
            ordinary(Frame(CODEC_BINARY, header[:end], b""), SendMessageV2)


def test_what_one_producer_wrote_is_not_taken_for_anothers() -> None:
    read = ShortSendReader()
    for group in ("one", "two", "one"):
        for broker in ("x", "y"):
            fields = read(binary({**USUAL, "a": group, "n": broker})).extFields
            assert (fields.producer_group, fields.bname) == (group, broker)


def test_a_json_header_of_another_shape_is_refused() -> None:
    command = Command(310, fields={"a": "only"})
    with pytest.raises(UNREADABLE):
        reader(SendMessageV2)(commands.encode_json_header(command))


def test_what_is_unusual_is_forgotten_at_once() -> None:
    """An exception that is raised again and again would keep the traceback, and with it the bytes, of every time."""
    read, depths = ShortSendReader(), []
    for _ in range(3):
        with pytest.raises(HeaderError) as unusual:
            read(b"\0" * 40)
        depths.append(len(unusual.traceback))
    assert len(set(depths)) == 1
