"""Old files go, a full disk refuses sends until there is room, and hopeless readers are stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import Wire, running, wire
from tests.raw_client import until
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker

FOUR_DAYS_SECONDS = 4 * 86_400
SEGMENT_BYTES = 1 << 20


async def fill_segments(client: Wire, count: int) -> None:
    """So many files of the log, the last one in use."""
    body = b"x" * 250_000
    for number in range(count * 4 - 3):
        assert (await client.send("T", body, number % 2)).code == 0


def age_segments(broker: Broker, count: int) -> None:
    for segment in broker.state.store.log.files.segments[:count]:
        changed = segment.file.path.stat().st_mtime - FOUR_DAYS_SECONDS
        os.utime(segment.file.path, (changed, changed))


def segments(store: Path) -> list[int]:
    return sorted(int(path.name) // SEGMENT_BYTES for path in (store / "commitlog").iterdir() if path.stat().st_size)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    disk = FaultyDisk(tmp_path)
    disk.faults.used_percent = 10
    return disk


@pytest.mark.parametrize("code", [RequestCode.TRIGGER_DELETE_FILES, RequestCode.DELETE_EXPIRED_COMMITLOG])
async def test_expired_files_go_when_asked_for(tmp_path: Path, disk: FaultyDisk, code: int) -> None:
    changes: dict[str, Any] = {"cleanResourceInterval": 20, "deleteCommitLogFilesInterval": 0, "deleteWhen": "0"}
    async with running(tmp_path, disk=disk, **changes) as broker, wire(broker) as client:
        await fill_segments(client, 4)
        age_segments(broker, 2)
        log = broker.state.store.log
        assert (await client.ask(code)).code == 0
        await until(lambda: log.start == 2 * SEGMENT_BYTES, what="two files gone")
        await until(lambda: broker.state.store.queue_range("T", 0).min_offset > 0, what="the queue follows the log")
        low, high = broker.state.store.queue_range("T", 0)
        assert (await client.pull("T", 0, 0)).code == ResponseCode.PULL_OFFSET_MOVED
        assert len(await client.bodies("T", 0, low)) == high - low
        assert set(segments(tmp_path)) & {0, 1} == set()


async def test_a_changed_retention_counts_in_the_next_round(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.faults.used_percent = 80  # expired files may go at any hour
    changes: dict[str, Any] = {
        "cleanResourceInterval": 20,
        "deleteCommitLogFilesInterval": 0,
        "diskMaxUsedSpaceRatio": 75,
    }
    async with running(tmp_path, disk=disk, fileReservedTime=1000, **changes) as broker, wire(broker) as client:
        await fill_segments(client, 3)
        age_segments(broker, 1)
        assert broker.state.store.log.start == 0
        await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=72")
        await until(lambda: broker.state.store.log.start == SEGMENT_BYTES, what="the expired file gone")


async def test_a_full_disk_refuses_sends_with_its_figure_and_recovers_by_itself(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with running(tmp_path, disk=disk, cleanResourceInterval=20) as broker, wire(broker) as client:
        await client.send("T", b"before")
        disk.faults.used_percent = 95
        await until(lambda: broker.state.store.health.refuses_writes, what="the disk found full")
        refused = await client.send("T", b"too much")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "95% full" in (refused.remark or "")
        assert str(tmp_path / "commitlog") in (refused.remark or "")
        assert await client.bodies("T") == [b"before"]  # reading goes on

        disk.faults.used_percent = 88  # not yet: it must fall to 85 first
        for _ in range(3):
            await broker.state.cleaning.round()
        assert (await client.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.faults.used_percent = 85
        await until(lambda: not broker.state.store.health.refuses_writes, what="room found")
        assert (await client.send("T", b"after")).code == 0
        assert await client.bodies("T") == [b"before", b"after"]


async def test_a_disk_that_cannot_take_the_next_file_answers_with_its_directory(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with running(tmp_path, disk=disk) as broker, wire(broker) as client:
        await fill_segments(client, 2)
        disk.faults.space_left = 0
        answers = [await client.send("T", b"x" * 250_000) for _ in range(12)]
        refused = [answer for answer in answers if answer.code]
        assert {answer.code for answer in refused} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert str(tmp_path) in (refused[0].remark or "")
        disk.faults.space_left = None
        assert (await client.send("T", b"x" * 250_000)).code == 0


async def test_index_files_that_lead_to_nothing_are_cleaned_and_numbering_goes_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    changes: dict[str, Any] = {"cleanResourceInterval": 3_600_000, "mappedFileSizeConsumeQueue": 20 * 2}
    async with running(tmp_path, disk=disk, **changes) as broker, wire(broker) as client:
        await fill_segments(client, 4)
        store = broker.state.store
        store.flush()
        before = store.queue_range("T", 0).max_offset
        store.log.files.delete_oldest()
        store.log.files.delete_oldest()
        files = list((tmp_path / "consumequeue" / "T" / "0").iterdir())
        assert (await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert len(list((tmp_path / "consumequeue" / "T" / "0").iterdir())) < len(files)
        assert (await client.send("T", b"next", 0)).fields["queueOffset"] == str(before)


async def test_the_broker_stops_while_it_cleans(tmp_path: Path, disk: FaultyDisk) -> None:
    """The thread is waited for, and its pauses between two files are cut short."""
    changes: dict[str, Any] = {"cleanResourceInterval": 20, "deleteCommitLogFilesInterval": 60_000, "deleteWhen": "0"}
    async with running(tmp_path, disk=disk, **changes) as broker, wire(broker) as client:
        await fill_segments(client, 4)
        age_segments(broker, 3)
        await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await until(lambda: broker.state.store.log.start > 0, what="the first file gone")
    async with running(tmp_path, disk=disk) as broker:
        assert broker.state.store.last_exit.name == "CLEAN"


async def test_a_reader_too_far_behind_may_not_read_until_it_is_enabled_again(tmp_path: Path) -> None:
    slow: dict[str, Any] = {"disableConsumeIfConsumerReadSlowly": "true", "consumerFallbehindThreshold": 1_000_000}
    async with running(tmp_path, **slow) as broker, wire(broker) as client:
        await fill_segments(client, 3)
        for group in ("Slow", "Quick", "Offline"):
            broker.state.offsets.commit(group, "T", 0, 0 if group != "Quick" else 4)
        await client.heartbeat("client-1", "Slow", {"T": "*"})
        async with wire(broker) as other:
            await other.heartbeat("client-2", "Quick", {"T": "*"})
            broker.state.progress.protect_broker()
        groups = broker.state.groups
        enabled = {name: config.consume_enable for name in ("Slow", "Quick") if (config := groups.get(name))}
        assert enabled == {"Slow": False, "Quick": True}
        refused = await client.pull("T", consumer_group="Slow")
        assert (refused.code, refused.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")
