"""Commands and their two header codecs, beyond what Apache's programs were recorded to say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import HeaderError
from orbitmq.protocol import command as commands
from orbitmq.protocol import versions
from orbitmq.protocol.codes import LANGUAGES, RequestCode, ResponseCode, name_of
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, Frame, FrameDecoder
from orbitmq.protocol.headers.nameserver import GetRoute

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def decode(data: bytes) -> Command:
    (frame,) = FrameDecoder().feed(data)
    return commands.decode(frame)


def from_json(header: bytes) -> Command:
    return commands.decode(Frame(CODEC_JSON, header, b""))


def test_the_documents_binary_example() -> None:
    example = bytes.fromhex(
        "00000025 01000021 0069 00 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54"
    )
    command = decode(example)
    assert (command.code, command.language, command.version, command.opaque) == (105, "JAVA", 479, 7)
    assert command.read(GetRoute) == GetRoute(topic="T")
    assert commands.encode(command, CODEC_BINARY) == example


def test_the_documents_json_example() -> None:
    command = Command(105, opaque=7, fields={"topic": "T"}, language="JAVA", version=479)
    header = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert commands.encode(command) == bytes.fromhex("0000007f0000007b") + header


@given(
    code=st.integers(-0x8000, 0x7FFF),
    flag=st.integers(0, 3),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    version=st.integers(-0x8000, 0x7FFF),
    language=st.sampled_from(LANGUAGES),
    remark=st.none() | TEXT.filter(bool),
    fields=st.dictionaries(TEXT.filter(bool), TEXT, max_size=5),
    body=st.binary(max_size=50),
    codec=st.sampled_from([CODEC_JSON, CODEC_BINARY]),
)
def test_what_is_encoded_is_decoded(
    code: int,
    flag: int,
    opaque: int,
    version: int,
    language: str,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
    codec: int,
) -> None:
    sent = Command(
        code, flag=flag, opaque=opaque, fields=fields, body=body, remark=remark, language=language, version=version
    )
    got = decode(commands.encode(sent, codec))
    assert (got.code, got.flag, got.opaque, got.version, got.language) == (code, flag, opaque, version, language)
    assert got.remark == remark
    assert dict(got.fields) == fields
    assert got.body == body


def test_texts_numbers_booleans_and_nulls_are_all_fields() -> None:
    command = from_json(b'{"code":1,"extFields":{"a":"x","b":5,"c":true,"d":null,"e":1.5,"f":false}}')
    assert command.fields == {"a": "x", "b": "5", "c": "true", "e": "1.5", "f": "false"}


@pytest.mark.parametrize(
    ("language", "name"),
    [
        (b'"JAVA"', "JAVA"),
        (b'"go"', "GO"),
        (b"9", "GO"),
        (b'"Rust"', "RUST"),
        (b'"KLINGON"', "OTHER"),
        (b"99", "OTHER"),
        (b"-1", "OTHER"),
        (b"null", "OTHER"),
    ],
)
def test_languages_come_in_any_case_as_numbers_or_unheard_of(language: bytes, name: str) -> None:
    assert from_json(b'{"code":1,"language":%b}' % language).language == name


def test_an_unknown_language_byte_is_other() -> None:
    header = bytearray(commands.encode(Command(1), CODEC_BINARY)[8:])
    header[2] = 200
    assert commands.decode(Frame(CODEC_BINARY, bytes(header), b"")).language == "OTHER"


@pytest.mark.parametrize(
    "header",
    [b'{"code":105}', b'{"code":"105"}', b' {"code" : 105 }\n', b'{"unknown":[1,{"x":2}],"code":105,"extFields":null}'],
)
def test_headers_may_be_spare_spaced_or_strange(header: bytes) -> None:
    command = from_json(header)
    assert (command.code, command.flag, command.opaque, command.version) == (105, 0, 0, 0)
    assert command.fields == {}


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"opaque":7,"extFields":{"i":"A\x01B\x02"}}',
        b'{"code":105,"opaque":7,"flag":null,"version":null,"extFields":{"i":"A\\u0001B\\u0002"}}',
        b"{code:105,opaque:7,extFields:{'i':'A\\u0001B\\u0002'}}",
    ],
)
def test_headers_are_read_as_loosely_as_apaches_servers_read_them(header: bytes) -> None:
    command = from_json(header)
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 0)
    assert command.fields == {"i": "A\x01B\x02"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"code":105',
        b'{"code":null}',
        b'{"code":"many"}',
        b'{"code":1.5}',
        b'{"code":1,"opaque":%b}' % (b"9" * 5000),
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"x":%b' % (b"[" * 100_000),
        b'{"code":1,"remark":"%b\x01"}' % (b"x" * 200_000),
        b'{"code":1,"x":{{"a":1}:2}}',
        b"\x00\x01\x02",
    ],
    ids=lambda header: repr(header[:30]),
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError):
        from_json(header)


@pytest.mark.parametrize("fields", [b"[]", b'"text"', b"5", b'{"a":"\xff"}', b'{"a":%b}' % (b"9" * 5000)])
def test_fields_that_are_no_map_of_texts_are_refused_when_read(fields: bytes) -> None:
    command = from_json(b'{"code":105,"extFields":%b}' % fields)
    with pytest.raises(HeaderError):
        command.read(GetRoute)
    with pytest.raises(HeaderError):
        _ = command.fields


def binary_header(**changes: bytes) -> bytes:
    parts = {
        "fixed": bytes.fromhex("0069 00 01df 00000007 00000000"),
        "remark": bytes.fromhex("00000000"),
        "fields": bytes.fromhex("0000000c 0005 746f706963 00000001 54"),
        **changes,
    }
    return b"".join(parts.values())


@pytest.mark.parametrize(
    "header",
    [
        b"",
        binary_header()[:16],
        binary_header()[:20],
        binary_header(remark=bytes.fromhex("00010000")),
        binary_header(remark=bytes.fromhex("ffffffff")),
        binary_header(remark=bytes.fromhex("00000001 ff")),
        binary_header(fields=bytes.fromhex("0000000d 0005 746f706963 00000001 54")),
        binary_header(fields=bytes.fromhex("ffffffff")),
    ],
    ids=lambda header: header.hex(),
)
def test_a_binary_header_with_lying_lengths_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError):
        commands.decode(Frame(CODEC_BINARY, header, b""))


@pytest.mark.parametrize(
    "fields",
    ["0000000c 0006 746f706963 00000001 54", "0000000c 0005 746f706963 00000002 54", "0000000c ffff 746f706963 00000001 54",
     "0000000c 0005 746f706963 ffffffff 54", "00000001 00", "0000000c 0005 74ff706963 00000001 54"],
)  # fmt: skip
def test_binary_fields_with_lying_lengths_are_refused_when_read(fields: str) -> None:
    command = commands.decode(Frame(CODEC_BINARY, binary_header(fields=bytes.fromhex(fields)), b""))
    with pytest.raises(HeaderError):
        command.read(GetRoute)


def test_the_second_of_two_equal_keys_counts() -> None:
    twice = "00000018" + 2 * "0005 746f706963 00000001 %s"
    command = commands.decode(Frame(CODEC_BINARY, binary_header(fields=bytes.fromhex(twice % ("41", "42"))), b""))
    assert command.fields == {"topic": "B"}


def test_a_field_name_too_long_for_the_binary_header_is_refused() -> None:
    with pytest.raises(HeaderError, match="too long"):
        commands.encode(Command(1, fields={"k" * 40_000: "v"}), CODEC_BINARY)


def test_fields_can_be_added_to_a_command_that_came_in() -> None:
    command = from_json(b'{"code":105,"extFields":{"topic":"T"}}')
    command.add_fields(bname="b")
    assert decode(commands.encode(command)).fields == {"topic": "T", "bname": "b"}


def test_an_answer_without_fields_has_no_map_and_one_with_an_empty_header_has_an_empty_one() -> None:
    assert b"extFields" not in commands.encode(commands.ok())
    assert b'"extFields":{}' in commands.encode(Command(0, fields={}))


@pytest.mark.parametrize("size", [0, 4095, 4096, 16_383, 16_384, 65_536])
@pytest.mark.parametrize("parts", [(), (memoryview(b"one"), memoryview(b"two"))])
def test_pieces_are_the_frame_and_a_large_body_is_one_that_nobody_copies(
    size: int, parts: tuple[memoryview, ...]
) -> None:
    body = bytes(size)
    one = Command(310, opaque=7, fields={"a": "b"}, body=body)
    one.parts = parts
    pieces = commands.encode_pieces(one)
    without_parts = Command(310, opaque=7, fields={"a": "b"}, body=b"".join((body, *parts)))
    assert b"".join(pieces) == commands.encode(without_parts)
    assert parts or (len(pieces) == 2 and pieces[1] is body) == (size >= 16_384)


def test_headers_are_strict_compact_json_in_alphabetical_order() -> None:
    command = commands.answer(ResponseCode.SYSTEM_ERROR, 'a "remark"\n')
    command._fields = {"b": "1", "a": "ü"}
    header = FrameDecoder().feed(commands.encode(command))[0].header
    assert list(msgspec.json.decode(header)) == [
        "code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version",
    ]  # fmt: skip
    assert msgspec.json.format(header, indent=-1) == header


def test_every_command_carries_our_language_and_version() -> None:
    command = decode(commands.encode(commands.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic="T"))))
    assert (command.language, command.version) == ("PYTHON", versions.OURS)


def test_release_numbers_follow_javas_rule() -> None:
    assert versions.ordinal(4, 0, 0) == 213
    assert versions.ordinal(4, 9, 4) == versions.FIRST_WITH_STANDARD_JSON
    assert versions.ordinal(5, 0, 0) == versions.FIRST_WITH_QUEUE_MAPPING
    assert versions.ordinal(5, 3, 3) == versions.OURS


def test_codes_have_names_and_unknown_ones_their_number() -> None:
    assert name_of(105, RequestCode) == "GET_ROUTEINFO_BY_TOPIC"
    assert name_of(17, ResponseCode) == "TOPIC_NOT_EXIST"
    assert name_of(54321, RequestCode) == "54321"


def test_a_command_shows_what_it_is() -> None:
    assert repr(commands.request(105, GetRoute(topic="T"), oneway=True)) == (
        "<one-way request GET_ROUTEINFO_BY_TOPIC #0 {'topic': 'T'} body=0>"
    )
    assert repr(commands.answer(17)) == "<answer TOPIC_NOT_EXIST #0 {} body=0>"
