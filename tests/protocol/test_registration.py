"""Registrations, plain and compressed: Apache's, ours, damaged ones and bombs."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import BodyError, InflatedTooLarge
from orbitmq.protocol import command as commands
from orbitmq.protocol import versions
from orbitmq.protocol.bodies import registration as registrations
from orbitmq.protocol.bodies.registration import (
    ListedTopic,
    Listing,
    Registration,
    body_checksum,
    decode_listing,
    decode_registration,
    encode_compressed,
)
from orbitmq.protocol.bodies.topics import DataVersion, TopicConfig, TopicQueueMapping, TopicTable
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.protocol.headers.nameserver import RegisterBroker
from tests.golden_frames import golden_frames

if TYPE_CHECKING:
    from orbitmq.protocol.command import Command

SENT: list[tuple[str, Command]] = [
    (str(golden), commands.decode(FrameDecoder().feed(golden.data)[0]))
    for golden in golden_frames()
    if golden.code == 103 and not golden.is_response
]
COMPRESSED = [(name, command) for name, command in SENT if command.body[:1] == b"\x78"]
BEFORE_MAPPINGS = versions.FIRST_WITH_QUEUE_MAPPING - 1


def registration(count: int = 3) -> Registration:
    return Registration(
        topic_config_serialize_wrapper=TopicTable(
            data_version=DataVersion(counter=5, state_version=1, timestamp=1_700_000_000_000),
            topic_config_table={
                f"topic-{i}": TopicConfig(topic_name=f"topic-{i}", read_queue_nums=i, perm=6, attributes={"+a": "b c"})
                for i in range(count)
            },
            topic_queue_mapping_info_map={
                "static": TopicQueueMapping(topic="static", bname="b", total_queues=8, curr_id_map={0: 1})
            },
        ),
        filter_server_list=["10.0.0.1:1"],
    )


def sections(*parts: bytes | int) -> bytes:
    """A compressed body by hand: integers as they are, bytes with their length before them."""
    joined = b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part for part in parts
    )
    return zlib.compress(joined, level=9)


@pytest.mark.parametrize(("name", "command"), SENT, ids=[name for name, _ in SENT])
def test_what_apaches_brokers_sent_is_understood(name: str, command: Command) -> None:
    header = command.read(RegisterBroker)
    assert header.body_crc32 in (0, body_checksum(command.body))
    got = decode_registration(command.body, command.version)
    table = got.topic_config_serialize_wrapper
    assert table.data_version.timestamp > 1_600_000_000_000
    assert all(config.topic_name == topic for topic, config in table.topic_config_table.items())
    if "one-way" not in name and "oneway" not in name:
        assert "TBW102" in table.topic_config_table
    assert got.filter_server_list == []


def test_the_recordings_hold_compressed_registrations_of_both_releases_and_one_is_mislabelled() -> None:
    labels = {command.version: command.read(RegisterBroker).compressed for _, command in COMPRESSED}
    assert labels == {versions.ordinal(4, 9, 7): True, versions.ordinal(5, 3, 3): False}


@pytest.mark.parametrize(("name", "command"), COMPRESSED, ids=[name for name, _ in COMPRESSED])
def test_a_compressed_registration_is_written_again_with_the_same_sections(name: str, command: Command) -> None:
    got = decode_registration(command.body, command.version)
    plain = zlib.decompress(command.body)
    again = zlib.decompress(encode_compressed(got))
    assert decode_registration(zlib.compress(again), versions.OURS) == got
    if command.version >= versions.FIRST_WITH_QUEUE_MAPPING:
        assert len(again) == len(plain)
        assert sorted(again) == sorted(plain)  # the same bytes; Java's hash maps choose another order of topics


def test_compressed_and_plain_say_the_same_but_for_what_the_text_form_cannot_hold() -> None:
    sent = registration()
    assert decode_registration(encode_compressed(sent), versions.OURS) == sent
    assert decode_registration(sent.to_json(), versions.OURS) == sent
    sent.topic_config_serialize_wrapper.topic_config_table["topic-1"].order = True
    got = decode_registration(encode_compressed(sent), versions.OURS)
    assert got.topic_config_serialize_wrapper.topic_config_table["topic-1"].order is False


def test_an_old_broker_sends_its_topic_table_alone() -> None:
    table = registration().topic_config_serialize_wrapper
    old = versions.FIRST_WITH_REGISTRATION_BODY - 1
    assert decode_registration(table.to_json(), old).topic_config_serialize_wrapper == table


def test_no_body_is_an_empty_table() -> None:
    assert decode_registration(b"", versions.OURS) == Registration()


def test_mappings_are_read_only_from_releases_that_send_them() -> None:
    body = encode_compressed(registration())
    assert decode_registration(body, BEFORE_MAPPINGS).topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}
    without = sections(b"{}", 0, b"[]")
    assert decode_registration(without, versions.OURS).filter_server_list == []
    assert decode_registration(without, BEFORE_MAPPINGS).filter_server_list == []


@pytest.mark.parametrize("text", ["t 4 4 6 SINGLE_TAG", 't 4 4 6 SINGLE_TAG {"+a":"b"}', "t 4 4 6 SINGLE_TAG {broken"])
def test_topic_texts_have_five_parts_or_six(text: str) -> None:
    config = TopicConfig.from_text(text)
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm) == ("t", 4, 4, 6)
    assert config.attributes == ({"+a": "b"} if "+a" in text else {})


@pytest.mark.parametrize("text", ["", "t 4 4 6", "t four 4 6 SINGLE_TAG", "t 4 4 2147483648 X", "t 4 4 1_0 X"])
def test_topic_texts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BodyError):
        TopicConfig.from_text(text)


TOPIC = b"t 4 4 6 SINGLE_TAG"


@pytest.mark.parametrize(
    "body",
    [
        b"\x78",
        b"\x78\x9c garbage",
        zlib.compress(b"")[:-1],
        encode_compressed(registration())[:-5],
        zlib.compress(b""),
        zlib.compress(b"\x00\x00"),
        sections(-1),
        sections(0x7FFFFFFF),
        sections(b"{}", -1),
        sections(b"{}", 0x7FFFFFFF),
        sections(b"{}", 2, TOPIC),
        sections(b"{}", 1, b"t four 4 6 X", b"[]", 0),
        sections(b"{}", 1, b"\xff 4 4 6 X", b"[]", 0),
        sections(b"{}", 1, TOPIC, b'["\xff"]', 0),
        sections(b"{}", 1, TOPIC, b"{}", 0),
        sections(b"{}", 1, TOPIC, b"[]", 5),
        sections(b"{}", 1, TOPIC, b"[]", 1, b"not json"),
        sections(b"broken", 0, b"[]", 0),
        zlib.compress(struct.pack(">i", 100) + b"{}"),
    ],
)
def test_a_compressed_registration_with_lies_in_it_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_registration(body, versions.OURS)


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_compressed_registration_is_refused_or_read_never_worse(position: int, byte: int) -> None:
    inflated = bytearray(zlib.decompress(encode_compressed(registration())))
    inflated[position % len(inflated)] = byte
    with contextlib.suppress(BodyError):
        decode_registration(zlib.compress(bytes(inflated)), versions.OURS)


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    limit = 1 << 20
    bomb = zlib.compress(bytes(64 << 20), level=9)
    tracemalloc.start()
    try:
        with pytest.raises(InflatedTooLarge, match="inflates to more than"):
            decode_registration(bomb, versions.OURS, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit


def test_the_real_limit_is_a_fraction_of_what_a_frame_can_hide() -> None:
    assert registrations.MAX_INFLATED_BYTES <= 32 << 20  # inflating needs it twice


def test_the_checksum_is_masked_as_javas_is() -> None:
    assert body_checksum(b"Hello") == 2010220930


@pytest.mark.parametrize(("name", "command"), SENT, ids=[name for name, _ in SENT])
def test_a_name_server_reads_the_same_of_it_whatever_the_form(name: str, command: Command) -> None:
    whole = decode_registration(command.body, command.version)
    assert decode_listing(command.body, command.version) == msgspec.convert(whole, Listing, from_attributes=True)


def test_of_a_topic_a_name_server_reads_only_what_it_keeps() -> None:
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","attributes":7,"perm":4}}}}'
    listed = decode_listing(body, versions.OURS).topic_config_serialize_wrapper.topic_config_table
    assert listed == {"T": ListedTopic(topic_name="T", perm=4)}
    with pytest.raises(BodyError):
        decode_listing(body.replace(b'"perm":4', b'"perm":"x"'), versions.OURS)
