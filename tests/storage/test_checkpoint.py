from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from orbitmq.storage.checkpoint import (
    Checkpoint,
    CheckpointFile,
    TimerCheckpoint,
    read_checkpoint,
    read_timer_checkpoint,
)
from orbitmq.storage.files import LocalDisk
from tests import golden_stores
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000_000


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_apaches_checkpoint_tells_the_time_of_its_last_message(version: str, tmp_path: Path) -> None:
    store = golden_stores.unpack(version, tmp_path)
    read = read_checkpoint(LocalDisk(), store / "checkpoint", NOW)
    last = golden_stores.manifest(version)["messages"][-1]["storeTimestamp"]
    assert max(read.log_synced_ms, read.queues_synced_ms) == last
    assert 0 < read.safe_until_ms <= last - 3000


def test_apaches_timer_checkpoint_is_read(tmp_path: Path) -> None:
    store = golden_stores.unpack("5.3.3", tmp_path)
    read = read_timer_checkpoint(LocalDisk(), store / "config" / "timercheck")
    assert read.read_until_ms > 1_700_000_000_000
    assert 0 < read.log_synced_offset <= 3 * 624
    assert read.queue_offset == sum(
        message["topic"] == "rmq_sys_wheel_timer" for message in golden_stores.manifest("5.3.3")["messages"]
    )


def test_a_saved_checkpoint_is_4096_bytes_of_big_endian_numbers(tmp_path: Path) -> None:
    file = CheckpointFile(LocalDisk(), tmp_path / "checkpoint")
    file.save(Checkpoint(10_000, 9_000, 3, 4, 5))
    file.close()
    assert (tmp_path / "checkpoint").read_bytes() == struct.pack(">5q", 10_000, 9_000, 3, 4, 5) + bytes(4056)
    read = read_checkpoint(LocalDisk(), tmp_path / "checkpoint", NOW)
    assert read == Checkpoint(10_000, 9_000, 3, 4, 5)
    assert read.safe_until_ms == 6_000


def test_a_timer_checkpoint_survives_the_round_trip(tmp_path: Path) -> None:
    file = CheckpointFile(LocalDisk(), tmp_path / "timercheck")
    file.save(TimerCheckpoint(1, 2, 3, 4, 5, 6, 7))
    assert read_timer_checkpoint(LocalDisk(), tmp_path / "timercheck") == TimerCheckpoint(1, 2, 3, 4, 5, 6, 7)


def test_a_missing_or_short_checkpoint_counts_as_zeroes_and_is_made_whole(tmp_path: Path) -> None:
    assert read_checkpoint(LocalDisk(), tmp_path / "checkpoint", NOW) == Checkpoint()
    assert Checkpoint().safe_until_ms == 0
    (tmp_path / "checkpoint").write_bytes(struct.pack(">2q", 7, 8))
    assert read_checkpoint(LocalDisk(), tmp_path / "checkpoint", NOW) == Checkpoint(7, 8)
    CheckpointFile(LocalDisk(), tmp_path / "checkpoint").close()
    assert (tmp_path / "checkpoint").read_bytes() == struct.pack(">2q", 7, 8) + bytes(4080)


@pytest.mark.parametrize("garbage", [b"\xff" * 4096, b"\x7f" * 4096, struct.pack(">q", NOW * 2)])
def test_garbage_counts_as_zeroes(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(garbage)
    assert read_checkpoint(LocalDisk(), tmp_path / "checkpoint", NOW) == Checkpoint()


def test_garbage_in_the_timer_checkpoint_counts_as_zeroes(tmp_path: Path) -> None:
    (tmp_path / "timercheck").write_bytes(b"\xff" * 4096)
    assert read_timer_checkpoint(LocalDisk(), tmp_path / "timercheck") == TimerCheckpoint()


def test_what_was_saved_survives_a_power_cut(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = CheckpointFile(disk, tmp_path / "checkpoint")
    file.save(Checkpoint(1, 2, 3))
    disk.crash()
    assert read_checkpoint(disk, tmp_path / "checkpoint", NOW) == Checkpoint(1, 2, 3)
