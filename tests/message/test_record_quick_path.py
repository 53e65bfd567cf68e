"""`decode_records` reads the usual record in one pass. Whatever the bytes are, it must say what the careful reader says."""

import random

from orbitmq.errors import MessageError
from orbitmq.message import StoredMessage
from orbitmq.message.hosts import pack_host
from orbitmq.message.record import decode_record, decode_records, encode_stored


def record(topic: str = "T", body: bytes = b"hi", born: str = "10.0.0.1") -> bytes:
    return encode_stored(
        StoredMessage(
            topic=topic,
            queue_id=1,
            queue_offset=5,
            body=body,
            properties={},
            raw_properties=b"TAGS\x01TagA\x02",
            flag=0,
            sys_flag=0,
            born_at_ms=1,
            born_host=pack_host(born, 50000),
            stored_at_ms=2,
            store_host=pack_host("127.0.0.1", 10911),
            reconsume_times=0,
            prepared_transaction_offset=0,
            commit_log_offset=100,
            size=0,
            body_crc=7,
        )
    )


def carefully(data: bytes) -> list[StoredMessage] | str:
    found, at = [], 0
    try:
        while at < len(data):
            found.append(decode_record(data, at))
            at += found[-1].size
    except MessageError as error:
        return str(error)
    return found


def quickly(data: bytes) -> list[StoredMessage] | str:
    try:
        return list(decode_records(data))
    except MessageError as error:
        return str(error)


def test_every_kind_of_record_reads_the_same() -> None:
    kinds = [record(), record(topic="t" * 200), record(born="::1"), record(body=b""), record(topic="标签")]
    data = b"".join(kinds)
    assert quickly(data) == carefully(data)
    assert quickly(memoryview(data).tobytes()) == carefully(data)
    assert len(quickly(data)) == 5


def test_every_cut_and_every_changed_byte_reads_the_same() -> None:
    data = record() + record(body=b"x" * 40)
    for cut in range(len(data)):
        assert quickly(data[:cut]) == carefully(data[:cut])
    for at in range(len(data)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            assert quickly(changed) == carefully(changed), (at, value)


def test_random_damage_reads_the_same() -> None:
    rng = random.Random(7)
    data = bytearray(record(body=b"body") * 3)
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        assert quickly(bytes(damaged)) == carefully(bytes(damaged))
