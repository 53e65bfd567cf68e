"""Records decoded a batch at a time say exactly what the plain decoder says of each, whatever the bytes are."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.errors import MessageError
from orbitmq.message import StoredMessage
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.compression import compress
from orbitmq.message.hosts import pack_host
from orbitmq.message.properties import decode_properties
from orbitmq.message.record import crc31, decode_record, decode_records, encode_blank, encode_stored
from orbitmq.message.sysflags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    NEED_UNWRAP,
)
from orbitmq.spark.decoding import RecordDecoder
from orbitmq.spark.plain_rows import plain_batch, unwrapped
from orbitmq.spark.record_fields import RecordBytes
from orbitmq.spark.schema import projection, table_schema
from tests.golden_stores import SEGMENT_BYTES, VERSIONS, commit_log

pytestmark = pytest.mark.usefixtures("loops")

ALL = projection(table_schema("all"))
RAW = projection(table_schema("all", properties="raw"))


def stored(**changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 5,
        "body": b"hi",
        "raw_properties": b"TAGS\x01TagA\x02KEYS\x01a b\x02UNIQ_KEY\x010A00\x02",
        "flag": 3,
        "sys_flag": 0,
        "born_at_ms": 1_700_000_000_000,
        "born_host": pack_host("10.0.0.1", 50_000),
        "stored_at_ms": 1_700_000_000_001,
        "store_host": pack_host("127.0.0.1", 10_911),
        "reconsume_times": 2,
        "prepared_transaction_offset": 7,
        "commit_log_offset": 100,
        "size": 0,
        "body_crc": 0,
        **changes,
    }
    fields["properties"] = decode_properties(fields["raw_properties"])
    fields["body_crc"] = fields["body_crc"] or crc31(fields["body"])
    return StoredMessage(**fields)


def plainly(data: bytes, wanted: Any = ALL) -> pa.RecordBatch:
    messages = [one for message in decode_records(data) for one in unwrapped(message)]
    return plain_batch(messages, wanted, "broker-a")


def decoded(data: bytes, wanted: Any = ALL) -> pa.RecordBatch:
    found = RecordDecoder(wanted, broker_name="broker-a").pulled(data)
    assert found.bad == []
    return found.batch


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Equal, with the entries of a map in any order."""

    if one.schema != other.schema:
        return False
    times = ("bornTimestamp", "storeTimestamp")
    for name in one.schema.names:
        left, right = one.column(name), other.column(name)
        if name in times:
            left, right = left.cast(pa.int64()), right.cast(pa.int64())
        if pa.types.is_map(left.type):
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            if any(sorted(first) != sorted(second) for first, second in pairs):
                return False
        elif left.to_pylist() != right.to_pylist():
            return False
    return True


NAMES = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"k", b"a longer name", "é".encode(), b"\xff", b"", b"UNIQ_KEYS"]
)
VALUES = st.one_of(st.sampled_from([b"", b"v", b"two words", b"\x01", b"a\x01b", b"\xff\xfe"]), st.binary(max_size=9))
ENTRIES = st.lists(st.one_of(st.tuples(NAMES, st.just(b"\x01"), VALUES).map(b"".join), VALUES), max_size=6)
TEXTS = st.tuples(ENTRIES.map(b"\x02".join), st.sampled_from([b"", b"\x02"])).map(b"".join)
HOSTS = st.sampled_from([pack_host("10.0.0.1", 1), pack_host("255.1.2.3", 65535), pack_host("fe80::1", 10_911)])
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
MESSAGES = st.builds(
    stored,
    topic=st.sampled_from(["T", "标签", "t" * 127, "t" * 200]),
    queue_id=INTS,
    queue_offset=LONGS,
    body=st.binary(max_size=20),
    raw_properties=TEXTS,
    flag=INTS,
    sys_flag=st.sampled_from([0, 8, COMPRESSION_ZSTD, INNER_BATCH]),
    born_at_ms=LONGS,
    born_host=HOSTS,
    stored_at_ms=LONGS,
    store_host=HOSTS,
    reconsume_times=INTS,
    prepared_transaction_offset=LONGS,
    commit_log_offset=st.integers(0, 2**62),
)


@given(st.lists(MESSAGES, max_size=8))
def test_a_batch_says_what_the_plain_decoder_says_of_each_record(messages: list[StoredMessage]) -> None:
    data = b"".join(map(encode_stored, messages))
    assert same(decoded(data), plainly(data))
    assert same(decoded(data, RAW), plainly(data, RAW))


def kept_as(message: StoredMessage, compression: int | None, members: int) -> StoredMessage:
    """The same message as a producer may have sent it: compressed, a batch of so many, or both."""
    body, flags = message.body, message.sys_flag
    if members:
        body = encode_batch([BatchMember(body, message.raw_properties, number) for number in range(members)])
        flags |= NEED_UNWRAP | INNER_BATCH
    if compression is not None:
        body = compress(body, compression)
        flags = flags & ~COMPRESSION_ZSTD | COMPRESSED | compression
    return stored(**{**_fields(message), "body": body, "sys_flag": flags, "body_crc": 0})


def _fields(message: StoredMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in StoredMessage.__struct_fields__}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            MESSAGES.filter(lambda message: not message.sys_flag & INNER_BATCH and abs(message.queue_offset) < 2**62),
            st.sampled_from([None, 0, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB]),
            st.integers(0, 3),
        ),
        max_size=6,
    )
)
def test_compressed_messages_and_batches_in_any_order_say_what_the_plain_decoder_says(
    kinds: list[tuple[StoredMessage, int | None, int]],
) -> None:
    data = b"".join(encode_stored(kept_as(*kind)) for kind in kinds)
    assert same(decoded(data), plainly(data))
    assert same(decoded(data, RAW), plainly(data, RAW))


@given(st.lists(TEXTS, max_size=20))
def test_properties_are_split_as_apache_splits_them(texts: list[bytes]) -> None:
    data = b"".join(encode_stored(stored(raw_properties=text)) for text in texts)
    batch = decoded(data)
    assert [dict(pairs) for pairs in batch.column("properties").to_pylist()] == [decode_properties(t) for t in texts]
    for name, column in (("TAGS", "tags"), ("KEYS", "keys")):
        assert batch.column(column).to_pylist() == [decode_properties(text).get(name) for text in texts]


NAMES = st.sampled_from(
    ["TAGS", "KEYS", "a", "eight888", "a longer name than eight", "a longer name than eighx", "blå"]
)


@given(st.lists(NAMES, min_size=1, max_size=5), st.lists(st.lists(st.text("xyå", min_size=1), min_size=5, max_size=5)))
def test_records_with_the_same_names_are_split_as_any(names: list[str], values: list[list[str]]) -> None:
    def text(names: list[str], values: list[str]) -> bytes:
        pairs = zip(names, values, strict=False)
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()

    same_names = [text(names, of_record) for of_record in values]
    others = [text([*names[:-1], "a longer name than eighx"], of_record) for of_record in values[-1:]]
    for texts in (same_names, same_names + others):
        batch = decoded(b"".join(encode_stored(stored(raw_properties=one)) for one in texts))
        want = [decode_properties(one) for one in texts]
        assert [dict(pairs) for pairs in batch.column("properties").to_pylist()] == want
        assert batch.column("tags").to_pylist() == [properties.get("TAGS") for properties in want]
        assert batch.column("keys").to_pylist() == [properties.get("KEYS") for properties in want]


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0])
def test_compressed_bodies_come_as_their_producers_gave_them(compression: int) -> None:
    packed = stored(body=compress(b"x" * 5000, compression), sys_flag=COMPRESSED | compression)
    data = encode_stored(stored()) + encode_stored(packed) + encode_stored(stored(body=b"last"))
    assert decoded(data).column("body").to_pylist() == [b"hi", b"x" * 5000, b"last"]


def test_a_message_whose_body_cannot_be_inflated_is_left_out_and_reported() -> None:
    good, broken = encode_stored(stored()), encode_stored(stored(body=b"no zlib", sys_flag=COMPRESSED))
    last = encode_stored(stored(body=compress(b"last"), sys_flag=COMPRESSED))
    found = RecordDecoder(ALL).pulled(good + broken + last)
    assert found.batch.column("body").to_pylist() == [b"hi", b"last"]
    assert [(bad.position, "zlib" in bad.reason) for bad in found.bad] == [(len(good), True)]
    without_body = RecordDecoder(projection(table_schema("topic,queueOffset"))).pulled(good + broken + last)
    assert (without_body.batch.num_rows, without_body.bad) == (3, [])


@pytest.mark.parametrize("batch", [0, NEED_UNWRAP | INNER_BATCH])
def test_a_missing_package_is_an_error_and_no_damage(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    flags = COMPRESSED | COMPRESSION_ZSTD | batch
    packed = encode_stored(stored(body=compress(b"x" * 99, COMPRESSION_ZSTD), sys_flag=flags))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MessageError, match="compressed with zstandard, which is not installed"):
        RecordDecoder(ALL).pulled(packed)


def test_each_message_of_an_inner_batch_is_a_row() -> None:
    members = [BatchMember(b"one", b"TAGS\x01A\x02", 1), BatchMember(b"two", b"KEYS\x01k"), BatchMember(b"", b"")]
    flags = NEED_UNWRAP | INNER_BATCH
    plain = stored(body=encode_batch(members), sys_flag=flags, queue_offset=40)
    packed = stored(body=compress(encode_batch(members[:1])), sys_flag=flags | COMPRESSED, queue_offset=43)
    broken = stored(body=b"nothing like it", sys_flag=flags)
    records = [encode_stored(message) for message in (stored(), plain, packed, stored(), broken, stored())]
    found = RecordDecoder(ALL).pulled(b"".join(records))
    assert found.batch.column("body").to_pylist() == [b"hi", b"one", b"two", b"", b"one", b"hi", b"hi"]
    assert found.batch.column("queueOffset").to_pylist() == [5, 40, 41, 42, 43, 5, 5]
    assert found.batch.column("tags").to_pylist()[:4] == ["TagA", "A", None, None]
    assert [bad.position for bad in found.bad] == [sum(map(len, records[:4]))]


def test_what_is_no_record_is_reported_with_its_place_and_the_others_are_read() -> None:
    records = [encode_stored(stored(body=bytes([number]) * 30)) for number in range(6)]
    data = bytearray(b"".join(records))
    size = len(records[0])
    data[size + 4] ^= 0xFF  # the magic
    data[2 * size + 84] = 0x7F  # the body's length
    data[3 * size + 90] ^= 1  # the body itself
    blank = len(data)
    data += encode_blank(200)
    starts = np.arange(8, dtype=np.int64) * size
    starts[6:] = blank, blank + 5000
    found = RecordDecoder(ALL, check_crc=True).at(RecordBytes(bytes(data)), starts)
    assert found.batch.column("body").to_pylist() == [bytes([number]) * 30 for number in (0, 4, 5)]
    assert [bad.position for bad in found.bad] == [size, 2 * size, 3 * size, blank, blank + 5000]
    reasons = [bad.reason for bad in found.bad]
    for reason, word in zip(reasons, ("magic", "does not fit", "CRC", "blank", "outside"), strict=True):
        assert word in reason


def test_damage_is_found_wherever_the_plain_decoder_finds_it() -> None:
    rng = random.Random(11)
    records = [encode_stored(stored(topic="t" * length, body=b"b" * length)) for length in (1, 20, 200)]
    whole = b"".join(records)
    starts = np.array([0, len(records[0]), len(records[0]) + len(records[1])], np.int64)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(90)
            if place != 28:  # a negative place in the log has no id worth comparing
                damaged[rng.choice(starts.tolist()) + place] = rng.randrange(256)
        data = bytes(damaged[: rng.randrange(1, len(damaged) + 1)])
        found = RecordDecoder(RAW).at(RecordBytes(data), starts)
        sound = []
        for start in starts.tolist():
            try:
                messages = list(unwrapped(decode_record(data, start)))
                plain_batch(messages, RAW, "")  # where a body says that it is compressed, and is not
            except MessageError:
                continue
            sound += messages
        assert same(found.batch, plain_batch(sound, RAW, ""))


@pytest.mark.parametrize("version", VERSIONS)
def test_apaches_own_records_read_the_same(version: str) -> None:
    log = commit_log(version)
    for start in range(0, len(log), SEGMENT_BYTES):
        segment = log[start : start + SEGMENT_BYTES]
        found = RecordDecoder(ALL, broker_name="broker-a", check_crc=True).pulled(segment)
        messages = []
        at = 0
        while not found.bad or at < found.bad[-1].position:
            messages.append(decode_record(segment, at))
            at += messages[-1].size
        assert messages
        assert same(found.batch, plain_batch(messages, ALL, "broker-a"))
