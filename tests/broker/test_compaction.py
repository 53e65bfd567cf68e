"""Topics that keep the latest message of each key."""

from __future__ import annotations

import asyncio
import json
import threading
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit
from orbitmq.testing.clock import MovableClock
from tests.broker.kit import MIN_OFFSET, PATIENCE_SECONDS, Wire, messages_of, running, wire
from tests.broker.lease_kit import PEEK, LeaseClient
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.storage.open_files import MappedFile

CREATE_TOPIC, DELETE_TOPIC, MESSAGE_ILLEGAL = 17, 215, 13
SMALL: dict[str, Any] = {
    "compactionCqMappedFileSize": 46 * 11,  # ten messages a file
    "compactionMappedFileSize": 46 * 11 * 20,
    "mappedFileSizeCommitLog": 16 << 10,
}
UNFLUSHED: dict[str, Any] = {"flushIntervalCommitLog": 3_600_000, "flushIntervalConsumeQueue": 3_600_000}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", **SMALL) as running_broker:
        yield running_broker


async def create(client: Wire) -> None:
    header = {
        "topic": "C", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "+cleanup.policy=COMPACTION",
    }  # fmt: skip
    assert (await client.ask(CREATE_TOPIC, header)).code == 0


def compacted(broker: Broker) -> CompactedTopics:
    assert broker.state.compacted is not None
    return broker.state.compacted


async def write(client: Wire, first: int, count: int, keys: int = 3) -> None:
    for number in range(first, first + count):
        answer = await client.send("C", b"%d" % number, KEYS=f"key-{number % keys}", TAGS=f"t{number % 2}")
        assert answer.code == 0


async def test_the_latest_of_each_key_stays_and_keeps_its_number(client: Wire, broker: Broker) -> None:
    await create(client)
    await write(client, 0, 35)
    assert [message.queue_offset for message in await client.messages("C")] == list(range(35))

    await compacted(broker).compact()

    # The file that is being written to is left alone: messages 30 to 34.
    assert await client.bodies("C") == [b"27", b"28", b"29", *(b"%d" % i for i in range(30, 35))]
    assert [message.queue_offset for message in await client.messages("C")] == [27, 28, 29, *range(30, 35)]
    answer = await client.pull("C", 0, 3)  # what was there is gone; the next is meant
    assert messages_of(answer)[0].queue_offset == 27
    assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("27", "35")


async def test_rounds_build_on_each_other_and_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 45, keys=20)
        await compacted(broker).compact()
        await write(client, 45, 30, keys=4)
        await compacted(broker).compact()
        seen = await client.bodies("C")
        await compacted(broker).compact()
        assert await client.bodies("C") == seen
    positions = json.loads((tmp_path / "compaction" / "position-checkpoint").read_text())
    assert positions["queueOffsetMap"]["C_0"] >= 60

    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == seen
        latest = {message.properties["KEYS"]: int(message.body) for message in await client.messages("C")}
        assert latest == {f"key-{k}": max([n for n in range(45) if n % 20 == k] + [n for n in range(45, 75) if n % 4 == k])
                          for k in range(20)}  # fmt: skip
        await write(client, 75, 1)
        assert (await client.messages("C"))[-1].queue_offset == 75


async def test_values_outlive_the_files_of_the_commit_log(client: Wire, broker: Broker) -> None:
    await create(client)
    await client.send("C", b"old but valid", KEYS="k")
    log = broker.state.store.log
    for number in range(200):
        await client.send("C", b"%d" % number * 50, KEYS=f"other-{number % 5}")
    while log.files.delete_oldest() is not None:
        pass
    broker.state.store.queues.delete_below(log.start)
    assert broker.state.store.queue_range("C", 0).min_offset > 0
    await compacted(broker).compact()

    assert (await client.ask(MIN_OFFSET, {"topic": "C", "queueId": 0})).fields["offset"] == "0"
    assert (await client.bodies("C"))[0] == b"old but valid"


async def test_pops_and_what_comes_back_of_them_are_served_as_pulls_are(tmp_path: Path) -> None:
    clock = MovableClock()
    async with running(tmp_path, clock=clock, reviveInterval=20, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await client.send("C", b"old but valid", KEYS="k")
        for number in range(200):
            await client.send("C", b"%d" % number * 50, KEYS=f"other-{number % 5}")
        log = broker.state.store.log
        while log.files.delete_oldest() is not None:
            pass
        broker.state.store.queues.delete_below(log.start)
        await compacted(broker).compact()
        served = await client.bodies("C")
        assert served[0] == b"old but valid"

        consumer = LeaseClient(client)
        peeked = await client.ask(PEEK, {"consumerGroup": "LG", "topic": "C", "queueId": 0, "maxMsgNums": 1})
        assert [message.body for message in messages_of(peeked)] == served[:1]
        popped = []
        while leased := await consumer.pop("C", invisibleTime=10_000):
            popped += leased
        assert [each.body for each in popped] == served
        assert (await consumer.extend(popped[0], 10_000)).code == 0
        for each in popped[1:]:
            assert (await consumer.ack(each)).code == 0
        clock.advance(seconds=14)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (again := await consumer.pop("C")):
                await asyncio.sleep(0.02)
        assert [each.body for each in again] == served[:1]
        assert (await consumer.ack(again[0])).code == 0


async def test_pops_do_not_give_what_was_replaced_though_the_log_has_it(client: Wire, broker: Broker) -> None:
    await create(client)
    await write(client, 0, 35)
    consumer = LeaseClient(client)
    assert [each.body for each in await consumer.pop("C", maxMsgNums=1)] == [b"0"]

    await compacted(broker).compact()

    popped = await consumer.pop("C")
    assert [each.body for each in popped][:3] == [b"27", b"28", b"29"]


async def test_a_message_without_a_key_is_refused(client: Wire) -> None:
    await create(client)

    refused = await client.send("C", b"x")

    assert refused.code == MESSAGE_ILLEGAL
    assert "key" in str(refused.remark)


async def test_whoever_waits_is_woken_and_filters_work(client: Wire) -> None:
    await create(client)
    await write(client, 0, 1)
    held = await client.hold("C", 0, 1)

    await write(client, 1, 3)

    assert (await held).code == 0
    odd = messages_of(await client.pull("C", subscription="t1"))
    assert [message.body for message in odd] == [b"1", b"3"]


async def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 30)
        await client.ask(DELETE_TOPIC, {"topic": "C"})
        assert not list((tmp_path / "compaction" / "compactionLog").glob("*/*/*"))
        await create(client)
        await write(client, 0, 1)
        assert await client.bodies("C") == [b"0"]


async def test_what_a_power_cut_took_from_the_log_goes_from_the_copy_and_others_get_its_numbers(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    async with running(tmp_path / "store", disk=disk, **SMALL, **UNFLUSHED) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 2)
        broker.state.store.flush()
        await write(client, 2, 20)
        await compacted(broker).sync()
        image = disk.power_cut_image(tmp_path / "image")
    async with running(image, **SMALL) as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.CRASHED
        assert await client.bodies("C") == [b"0", b"1"]
        await write(client, 100, 3)
        assert [message.queue_offset for message in await client.messages("C")] == [0, 1, 2, 3, 4]
        assert await client.bodies("C") == [b"0", b"1", b"100", b"101", b"102"]


async def test_a_copy_whose_last_file_a_power_cut_left_empty_is_read(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    async with running(tmp_path / "store", disk=disk, **SMALL, **UNFLUSHED) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 10)
        broker.state.store.flush()
        await write(client, 10, 1)
        compacted(broker).queues["C", 0]._pairs[0].sync()  # as the system may write back what it likes
        image = disk.power_cut_image(tmp_path / "image")
    async with running(image, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == [b"%d" % number for number in range(10)]


async def test_no_value_is_dropped_for_one_that_a_power_cut_could_take(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    async with running(tmp_path / "store", disk=disk, **SMALL, **UNFLUSHED) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 35)
        await compacted(broker).compact()
        image = disk.power_cut_image(tmp_path / "image")
    async with running(image, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == [b"27", b"28", b"29", *(b"%d" % i for i in range(30, 35))]


async def test_a_copy_of_which_a_power_cut_took_pages_is_made_whole_from_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    bodies = [b"%d " % number + b"x" * 1500 for number in range(120)]
    files = {"compactionCqMappedFileSize": 46 * 91, "compactionMappedFileSize": 46 * 91 * 40}  # 90 messages, two pages
    settings: dict[str, Any] = {**files, **UNFLUSHED, "flushDiskType": "SYNC_FLUSH"}
    async with running(tmp_path / "store", disk=disk, **settings) as broker, wire(broker) as client:
        await create(client)
        for number, body in enumerate(bodies):
            assert (await client.send("C", body, KEYS=f"key-{number}")).code == 0
        images = [disk.power_cut_image(tmp_path / f"{seed}", Random(seed)) for seed in range(4)]
    for image in images:
        async with running(image, **settings) as broker, wire(broker) as client:
            assert broker.state.store.last_exit is LastExit.CRASHED
            assert await client.bodies("C") == bodies


class DiskThatStalls(LocalDisk):
    """Whoever writes compacted files waits until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        if path.parent.name == "compacting":
            self.reached.set()
            assert self.go_on.wait(PATIENCE_SECONDS)
        return super().allocate(path, size, reserve=reserve)


async def test_a_topic_made_again_while_a_thread_compacts_the_old_one_stays_the_new_one(tmp_path: Path) -> None:
    disk = DiskThatStalls()
    async with running(tmp_path, disk=disk, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 35)
        compacting = asyncio.create_task(compacted(broker).compact())
        await asyncio.to_thread(disk.reached.wait, PATIENCE_SECONDS)
        threading.Timer(1.0, disk.go_on.set).start()
        await client.ask(DELETE_TOPIC, {"topic": "C"})
        await create(client)
        await write(client, 100, 3)
        await compacting
        assert await client.bodies("C") == [b"100", b"101", b"102"]
    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == [b"100", b"101", b"102"]


async def test_a_broker_that_stops_waits_for_the_thread_that_compacts(tmp_path: Path) -> None:
    disk = DiskThatStalls()
    async with running(tmp_path, disk=disk, compactionScheduleInternal=10, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 35)
        await asyncio.to_thread(disk.reached.wait, PATIENCE_SECONDS)
        threading.Timer(1.0, disk.go_on.set).start()
    assert disk.go_on.is_set(), "the store was given back while a thread wrote there"
    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == [b"%d" % number for number in range(35)]


@pytest.mark.parametrize("files_moved", [0, 1, 2])
async def test_an_exchange_that_was_cut_short_is_finished(tmp_path: Path, files_moved: int) -> None:
    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 45)
    queue = tmp_path / "compaction" / "compactionLog" / "C" / "0"
    async with running(tmp_path, **SMALL) as broker:
        (compacted_queue,) = compacted(broker).queues.values()
        assert compacted_queue.compact(-1, 45) == 39
        assert (queue / "compacting" / "ready").exists()
    for folder in (queue, tmp_path / "compaction" / "compactionCq" / "C" / "0")[:files_moved]:
        (folder / "compacting" / f"{0:020d}").rename(folder / f"{0:020d}")

    async with running(tmp_path, **SMALL) as broker, wire(broker) as client:
        assert await client.bodies("C") == [b"37", b"38", b"39", *(b"%d" % i for i in range(40, 45))]
    assert not (queue / "compacting").exists()


async def test_compaction_may_be_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, enableCompaction="false") as broker, wire(broker) as client:
        await create(client)
        await write(client, 0, 3)
        assert len(await client.bodies("C")) == 3
    assert not (tmp_path / "compaction" / "compactionLog").exists()
