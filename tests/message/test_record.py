from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import MessageError
from orbitmq.message.hosts import pack_host
from orbitmq.message.message import StoredMessage
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.record import (
    END_OF_FILE,
    MAGIC_V1,
    MAGIC_V2,
    crc31,
    decode_briefly,
    decode_entry,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    encode_stored,
    fill_record_crc,
    hosts_flag,
    record_size,
    stored_at_ms,
    topic_field,
    with_crc_room,
)
from orbitmq.message.record_check import check_record, valid_run
from orbitmq.message.sysflags import BORN_HOST_IPV6, STORE_HOST_IPV6
from tests.golden_stores import SEGMENT_BYTES, VERSIONS, commit_log, manifest

# remoting.md, appendix A: queue 1, queue offset 5, log offset 100, body `hi`, topic `T`, TAGS=TagA.
APACHE_RECORD = bytes.fromhex(
    "00000068 daa320a7 58932aac 00000001 00000000 0000000000000005 0000000000000064 00000000 0000018bcfe56800"
    "0a000001 0000c350 0000018bcfe56801 7f000001 00002a9f 00000000 0000000000000000 00000002 6869 01 54 000a"
    "54414753015461674102"
)


def stored(**changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 5,
        "body": b"hi",
        "raw_properties": encode_properties({"TAGS": "TagA"}),
        "flag": 0,
        "sys_flag": 0,
        "born_at_ms": 1_700_000_000_000,
        "born_host": pack_host("10.0.0.1", 50_000),
        "stored_at_ms": 1_700_000_000_001,
        "store_host": pack_host("127.0.0.1", 10_911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "commit_log_offset": 100,
    }
    fields |= changes
    fields["properties"] = decode_properties(fields["raw_properties"])
    fields["body_crc"] = crc31(fields["body"])
    fields["sys_flag"] |= hosts_flag(fields["born_host"], fields["store_host"])
    fields["size"] = record_size(
        topic_field(fields["topic"]), fields["sys_flag"], len(fields["body"]), len(fields["raw_properties"])
    )
    return StoredMessage(**fields)


def test_encodes_a_message_to_the_bytes_that_apache_writes() -> None:
    assert encode_stored(stored()) == APACHE_RECORD


def test_decodes_the_bytes_that_apache_writes() -> None:
    message = decode_record(APACHE_RECORD)
    assert message == stored()
    assert message.tags == "TagA"
    assert message.born_address == "10.0.0.1:50000"
    assert message.store_address == "127.0.0.1:10911"
    assert message.offset_id == "7F00000100002A9F0000000000000064"
    assert message.message_id == message.offset_id


@pytest.mark.parametrize("version", VERSIONS)
def test_every_record_of_an_apache_store_decodes_to_its_manifest_and_encodes_to_the_same_bytes(version: str) -> None:
    log = memoryview(commit_log(version))
    for wanted in manifest(version)["messages"]:
        at, size = wanted["commitLogOffset"], wanted["size"]
        message = decode_record(log, at)
        got = {
            "bodyCrc": message.body_crc,
            "bodyLength": len(message.body),
            "bodySha256": hashlib.sha256(message.body).hexdigest(),
            "bornHost": message.born_address,
            "bornTimestamp": message.born_at_ms,
            "commitLogOffset": message.commit_log_offset,
            "flag": message.flag,
            "magic": f"{MAGIC_V2 & 0xFFFFFFFF if len(message.topic) > 127 else MAGIC_V1 & 0xFFFFFFFF:08X}",
            "msgId": message.offset_id,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "properties": message.properties,
            "propertiesHex": message.raw_properties.hex(),
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "reconsumeTimes": message.reconsume_times,
            "size": message.size,
            "storeHost": message.store_address,
            "storeTimestamp": message.stored_at_ms,
            "sysFlag": message.sys_flag,
            "topic": message.topic,
        }
        assert got == {name: wanted[name] for name in got}
        assert message.tags == (wanted.get("tags") or "")
        assert message.keys == (wanted.get("keys") or "").split()
        assert encode_stored(message) == log[at : at + size]


@pytest.mark.parametrize("version", VERSIONS)
def test_walking_an_apache_log_meets_exactly_the_records_of_the_manifest(version: str) -> None:
    log = memoryview(commit_log(version))
    met = []
    at = 0
    while at < len(log) and any(log[at : at + 8]):
        file_end = (at // SEGMENT_BYTES + 1) * SEGMENT_BYTES
        size = check_record(log, at, file_end)
        if size == END_OF_FILE:
            at = file_end
            continue
        met.append(at)
        at += size
    assert met == [wanted["commitLogOffset"] for wanted in manifest(version)["messages"]]
    with pytest.raises(MessageError, match="no record starts here"):
        check_record(log, at, len(log))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cheap_view_agrees_with_the_whole_message(version: str) -> None:
    log = memoryview(commit_log(version))
    for wanted in manifest(version)["messages"]:
        at = wanted["commitLogOffset"]
        entry, message = decode_entry(log, at, at), decode_record(log, at)
        assert (entry.commit_log_offset, entry.size, entry.topic, entry.queue_id, entry.queue_offset) == (
            at,
            message.size,
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert (entry.sys_flag, entry.stored_at_ms, entry.properties) == (
            message.sys_flag,
            message.stored_at_ms,
            message.raw_properties,
        )
        assert stored_at_ms(log, at) == message.stored_at_ms


@pytest.mark.parametrize("version", VERSIONS)
def test_the_brief_view_agrees_with_the_whole_message(version: str) -> None:
    log = commit_log(version)
    places = [(wanted["commitLogOffset"], wanted["size"]) for wanted in manifest(version)["messages"]]
    messages = [decode_record(log, at) for at, _ in places]
    records = b"".join(log[at : at + size] for at, size in places)
    for topic in {message.topic for message in messages}:
        assert_brief_agrees(records, topic, messages)


def test_a_topic_of_more_than_127_characters_makes_a_v2_record() -> None:
    assert topic_field("t" * 127).magic == MAGIC_V1
    assert topic_field("t" * 128).magic == MAGIC_V2
    message = stored(topic="t" * 300)
    assert decode_record(encode_stored(message)) == message


def test_a_topic_of_few_characters_but_too_many_bytes_is_refused() -> None:
    with pytest.raises(MessageError, match="128 bytes"):
        topic_field("é" * 64)
    with pytest.raises(MessageError, match="does not fit"):
        topic_field("t" * 40_000)


@pytest.mark.parametrize(
    ("born", "kept", "flag"),
    [
        ("10.0.0.1", "::1", STORE_HOST_IPV6),
        ("2001:db8::7", "127.0.0.1", BORN_HOST_IPV6),
        ("2001:db8::7", "::1", BORN_HOST_IPV6 | STORE_HOST_IPV6),
    ],
)
def test_each_ipv6_host_takes_twelve_bytes_more_and_sets_its_bit(born: str, kept: str, flag: int) -> None:
    message = stored(born_host=pack_host(born, 1), store_host=pack_host(kept, 2))
    record = encode_stored(message)
    assert message.sys_flag == flag
    assert len(record) == len(APACHE_RECORD) + 12 * flag.bit_count()
    assert decode_record(record) == message
    assert check_record(memoryview(record), 0, len(record)) == len(record)
    for topic in (message.topic, "another"):
        assert_brief_agrees(record * 2, topic, [message, message])
    assert decode_entry(record, 0, 0).stored_at_ms == message.stored_at_ms


def test_records_one_behind_the_other_decode_in_order() -> None:
    messages = [stored(queue_offset=i, body=b"x" * i) for i in range(5)]
    assert list(decode_records(b"".join(map(encode_stored, messages)))) == messages


def test_a_blank_record_says_how_much_of_the_file_is_left() -> None:
    blank = encode_blank(1000)
    assert blank == bytes.fromhex("000003e8cbd43194")
    assert check_record(memoryview(blank), 0, 8) == END_OF_FILE
    with pytest.raises(MessageError, match="blank"):
        decode_record(blank)


def test_the_crc_property_closes_the_record_with_its_digits_reversed() -> None:
    properties = with_crc_room(b"TAGS\x01TagA")
    record = fill_record_crc(encode_stored(stored(raw_properties=properties)))
    crc = crc31(record[:-20])
    digits = f"{crc:010d}".lstrip("0")[::-1].ljust(10, "0").encode()
    assert record[-20:] == b"__CRC32#\x01" + digits + b"\x02"
    assert decode_record(record).properties["TAGS"] == "TagA"
    assert check_record(memoryview(record), 0, len(record), property_crc=True) == len(record)


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"a\x01b", b"a\x01b\x02"), (b"a\x01b\x02", b"a\x01b\x02")])
def test_room_for_the_crc_adds_a_separator_only_where_one_is_missing(before: bytes, after: bytes) -> None:
    assert with_crc_room(before) == after + b"__CRC32#\x010000000000\x02"


def test_a_wrong_or_missing_crc_property_is_invalid_where_it_is_demanded() -> None:
    record = fill_record_crc(encode_stored(stored(raw_properties=with_crc_room(b""))))
    damaged = bytearray(record)
    damaged[16] ^= 1  # the application flag: no body CRC would notice
    assert check_record(memoryview(damaged), 0, len(damaged)) == len(damaged)
    with pytest.raises(MessageError, match="does not match its CRC property"):
        check_record(memoryview(damaged), 0, len(damaged), property_crc=True)
    with pytest.raises(MessageError, match="no CRC property"):
        check_record(memoryview(APACHE_RECORD), 0, len(APACHE_RECORD), property_crc=True)


def test_a_damaged_body_is_found_by_its_crc_and_only_when_asked() -> None:
    damaged = bytearray(APACHE_RECORD)
    damaged[88] ^= 1
    with pytest.raises(MessageError, match="body does not match its CRC"):
        check_record(memoryview(damaged), 0, len(damaged))
    assert check_record(memoryview(damaged), 0, len(damaged), check_crc=False) == len(damaged)


@pytest.mark.parametrize(
    ("at", "field", "reason"),
    [
        (0, struct.pack(">i", 50), "record of 50 bytes"),
        (0, struct.pack(">i", -1), "record of -1 bytes"),
        (0, struct.pack(">i", 105), "105 bytes where 104 are left"),
        (4, struct.pack(">i", 0), "no record starts here"),
        (4, struct.pack(">I", 0xDAA320A8), "unknown magic 0xDAA320A8"),
        (84, struct.pack(">i", -1), "body of -1 bytes"),
        (84, struct.pack(">i", 1000), "body of 1000 bytes"),
        (90, b"\xff", "topic of 255 bytes"),
        (90, b"\x0c", "topic of 12 bytes"),
        (90, b"\x02", "do not add up"),
        (92, struct.pack(">h", 11), "do not add up"),
        (92, struct.pack(">h", -1), "do not add up"),
    ],
)
def test_contradicting_lengths_are_invalid_and_say_why(at: int, field: bytes, reason: str) -> None:
    damaged = bytearray(APACHE_RECORD)
    damaged[at : at + len(field)] = field
    with pytest.raises(MessageError, match=reason):
        check_record(memoryview(damaged), 0, len(damaged))
    with pytest.raises(MessageError, match=reason):
        decode_record(bytes(damaged))
    assert_run_agrees(bytes(damaged))


def test_a_record_cut_anywhere_is_invalid() -> None:
    for length in range(len(APACHE_RECORD)):
        with pytest.raises(MessageError):
            check_record(memoryview(APACHE_RECORD), 0, length)
        with pytest.raises(MessageError):
            decode_record(APACHE_RECORD[:length])
        assert valid_run(memoryview(APACHE_RECORD), 0, length, 1) == ([], 0)
    assert valid_run(memoryview(APACHE_RECORD * 3), 0, 3 * len(APACHE_RECORD), 2)[0] == [0, len(APACHE_RECORD)]


def test_an_ipv6_record_too_short_for_its_own_head_is_invalid() -> None:
    damaged = bytearray(encode_stored(stored(body=b"", topic="", raw_properties=b"")))
    damaged[36:40] = struct.pack(">i", BORN_HOST_IPV6 | STORE_HOST_IPV6)
    with pytest.raises(MessageError, match="does not fit"):
        check_record(memoryview(damaged), 0, len(damaged))


def test_properties_too_long_for_their_length_field_are_refused() -> None:
    with pytest.raises(MessageError, match="32767"):
        encode_stored(stored(raw_properties=b"k\x01" + b"v" * 32_767))


def test_the_append_path_takes_a_body_it_need_not_own() -> None:
    record = encode_record(
        topic_field("T"), 1, 0, 5, 100, 0, 1_700_000_000_000, pack_host("10.0.0.1", 50_000), 1_700_000_000_001,
        pack_host("127.0.0.1", 10_911), 0, 0, memoryview(b"-hi-")[1:3], crc31(b"hi"), b"TAGS\x01TagA\x02",
    )  # fmt: skip
    assert record == APACHE_RECORD


HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)


@given(
    topic=st.text(st.characters(codec="ascii"), max_size=200),
    body=st.binary(max_size=300),
    raw_properties=st.binary(max_size=300),
    queue_id=INT,
    flag=INT,
    sys_flag=INT.map(lambda flag: flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)),
    queue_offset=LONG,
    commit_log_offset=LONG,
    born_at_ms=LONG,
    stored_at_ms=LONG,
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=INT,
    prepared_transaction_offset=LONG,
)
def test_any_message_survives_the_round_trip(**fields: Any) -> None:
    message = stored(**fields)
    record = encode_stored(message)
    assert len(record) == message.size
    assert decode_record(record) == message
    assert check_record(memoryview(record), 0, len(record)) == len(record)
    for topic in (message.topic, "another"):
        assert_brief_agrees(record * 2, topic, [message, message])


@given(st.binary(max_size=200), st.integers(0, 103), st.binary(min_size=1, max_size=8))
def test_arbitrary_bytes_never_escape_as_another_error(noise: bytes, at: int, patch: bytes) -> None:
    patched = bytearray(APACHE_RECORD)
    patched[at : at + len(patch)] = patch
    for data in (noise, bytes(patched)):
        try:
            check_record(memoryview(data), 0, len(data))
            decode_record(data)
            decode_briefly(data, b"T")
        except MessageError:
            pass
        assert_run_agrees(data)


def assert_brief_agrees(records: bytes, topic: str, messages: list[StoredMessage]) -> None:
    """The brief view has of usual records the same as the whole message, and gives all others whole."""
    at = 0
    for found, message in zip(decode_briefly(records, topic.encode()), messages, strict=True):
        is_usual = message.topic == topic and len(topic) <= 127 and not message.sys_flag & 0xF1
        if is_usual:
            assert found == (
                at, message.flag, message.queue_offset, message.reconsume_times, message.body, message.raw_properties,
            )  # fmt: skip
        else:
            assert found == message
        at += message.size


def assert_run_agrees(data: bytes) -> None:
    """The quick check of many records takes what the careful one takes."""
    try:
        size = check_record(memoryview(data), 0, len(data))
    except MessageError:
        size = END_OF_FILE
    wanted = ([0], size) if size else ([], 0)
    assert valid_run(memoryview(data), 0, len(data), 1) == wanted
