"""Compacted topics on masters and slaves: the copies follow the log, also where that is cut."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.protocol.codes import RequestCode
from tests.replication.kit import copied, group_of_brokers, until, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from tests.broker.kit import Wire

SMALL: dict[str, Any] = {
    "compactionCqMappedFileSize": 46 * 11,
    "compactionMappedFileSize": 46 * 11 * 20,
}  # ten messages a file


async def make(client: Wire) -> None:
    fields = {
        "topic": "C", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+cleanup.policy=COMPACTION",
    }  # fmt: skip
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0


async def send(client: Wire, what: str, count: int) -> list[bytes]:
    bodies = [b"%s %d" % (what.encode(), number) for number in range(count)]
    for number, body in enumerate(bodies):
        assert (await client.send("C", body, KEYS=f"key-{number % 3}")).code == 0
    return bodies


async def knows_the_topic(slave: Broker) -> None:
    tables = slave.state.master_tables
    assert tables is not None

    def looked() -> bool:
        tables.message_arrived("unknown")
        return slave.state.topics.get("C") is not None

    await until(looked, "the slave knows the topic")


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as it came", "with values dropped for some that are cut"])
async def test_a_former_master_serves_what_its_successor_has(tmp_path: Path, is_compacted: bool) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master(**SMALL)
        slave = await group.slave(**SMALL)
        client = wire(master)
        await make(client)
        both = await send(client, "both", 5)
        await copied(master, slave)
        await knows_the_topic(slave)
        await group.stop(slave)
        await send(client, "only here", 20)
        assert master.state.compacted is not None
        if is_compacted:
            await master.state.compacted.compact()
        await client.close()
        await group.stop(master)
        heir = await group.master(folder="slave-1", **SMALL)
        client = wire(heir)
        expected = both + await send(client, "of the heir", 22)
        assert await client.bodies("C") == expected
        former = await group.slave(folder="master", **SMALL)
        await copied(heir, former)
        await knows_the_topic(former)
        asking = wire(former)
        assert await asking.bodies("C") == expected
        await asking.close()
        await client.close()


async def test_a_new_slave_that_is_given_the_masters_copies_has_what_is_older_than_the_log(tmp_path: Path) -> None:
    small = {**SMALL, "mappedFileSizeCommitLog": 16 << 10}
    async with group_of_brokers(tmp_path) as group:
        master = await group.master(**small)
        client = wire(master)
        await make(client)
        assert (await client.send("C", b"old but valid", KEYS="k")).code == 0
        await send(client, "value of another key" * 10, 100)
        log = master.state.store.log
        while log.files.delete_oldest() is not None:
            pass
        master.state.store.queues.delete_below(log.start)
        assert master.state.compacted is not None
        await master.state.compacted.compact()
        await client.close()
        await group.stop(master)
        shutil.copytree(tmp_path / "master" / "compaction", tmp_path / "slave-1" / "compaction")
        master = await group.master(**small)
        slave = await group.slave(**small)
        await copied(master, slave)
        await knows_the_topic(slave)
        client, asking = wire(master), wire(slave)
        served, there = await client.bodies("C"), await asking.bodies("C")
        assert there[0] == b"old but valid"
        assert set(served) <= set(there)  # with what the log has still, and the slave's own compaction drops
        await asking.close()
        await client.close()
