"""Finding the records in what a slave has copied: the compiled loop finds what the one in Python does, in whatever it is given."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.message.log_entry import entries_at
from orbitmq.message.record_check import valid_run
from tests.storage.store_kit import BORN_HOST, open_store

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from orbitmq.message.log_entry import LogEntry

BASE = 1 << 40
MOST = 1000
IPV6_HOST = bytes(range(16)) + BORN_HOST[-4:]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv(SWITCH, "1")
    found: ModuleType | None = compiled("indexes")
    if found is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
    return found


def log_of(tmp_path: Path, *, unusual: bool) -> bytes:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    for number in range(60):
        topic = ("T", "Ünicode", "T" * 127, "T" * 200 if unusual else "U")[number % 4]
        host = IPV6_HOST if unusual and number % 7 == 0 else BORN_HOST
        properties = b"UNIQ_KEY\x01u%d\x02" % number * (number % 3)
        store.append(topic, number % 5, b"x" * (number * 7 % 300), properties, 1, host)
    data = bytes(store.log.files.segments[0].memory[: store.log.end])
    store.close()
    return data


def by_python(data: bytes, start: int, limit: int) -> list[LogEntry]:
    memory = memoryview(data)
    positions, _ = valid_run(memory, start, limit, MOST, check_crc=False)
    return entries_at(memory, positions, BASE)


def test_usual_records_are_the_same_wherever_they_are_cut(tmp_path: Path, loops: ModuleType) -> None:
    data = log_of(tmp_path, unusual=False)
    for limit in range(0, len(data) + 1, 13):
        assert loops.usual_records(memoryview(data), 0, limit, BASE, MOST) == by_python(data, 0, limit)
    assert len(loops.usual_records(memoryview(data), 0, len(data), BASE, MOST)) == 60
    assert len(loops.usual_records(memoryview(data), 0, len(data), BASE, 7)) == 7


def test_what_is_unusual_or_damaged_is_left_to_python(tmp_path: Path, loops: ModuleType) -> None:
    whole, chance = log_of(tmp_path, unusual=True), Random(20261116)
    starts = [entry[1] - BASE for entry in by_python(whole, 0, len(whole))]
    assert len(starts) == 60
    for _ in range(3000):
        data = bytearray(whole)
        start = chance.choice(starts)
        for _ in range(chance.randrange(4)):
            data[start + chance.randrange(120) if chance.random() < 0.7 else chance.randrange(len(data))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )  # fmt: skip
        found = loops.usual_records(memoryview(data), start, len(data), BASE, MOST)
        assert found == by_python(bytes(data), start, len(data))[: len(found)]
