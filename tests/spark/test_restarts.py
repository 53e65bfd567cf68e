"""Reading while real brokers of ours stop and come back, and from a slave that is behind."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from orbitmq.broker.replication import slave as slave_module
from orbitmq.errors import TransportError
from orbitmq.spark import discovery
from orbitmq.spark.access import close_links
from orbitmq.spark.planning import QueueRange, RangesPartition
from orbitmq.spark.queue_offsets import from_json
from orbitmq.testing.contents import Contents
from tests.replication.kit import copied, group_of_brokers, until
from tests.spark.direct import batch_reader, bodies, rows_of, send, stream_reader

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.client.cluster import Cluster
    from orbitmq.spark.stream_reader import StreamReader
    from tests.replication.kit import Group


def servers(group: Group) -> Contents:
    found = Contents()
    found.address = str(group.name_server.address)
    return found


async def sent(group: Group, *texts: str) -> None:
    await asyncio.to_thread(send, servers(group), "T", texts, order_key="k")


async def step(reader: StreamReader, start: Any) -> tuple[Any, list[str]]:
    """One micro-batch: where it ends, and what it read."""

    def run() -> tuple[Any, list[str]]:
        end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
        return end, bodies(rows_of(reader, reader.partitions(start, end)))

    return await asyncio.to_thread(run)


async def test_a_batch_is_planned_when_its_broker_is_back(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        await sent(group, "1", "2")
        await asyncio.to_thread(close_links)  # a driver that begins now knows no route
        await group.stop(master)
        hasty = batch_reader(servers(group), subscribe="T", retryTimeout="0ms")
        with pytest.raises(TransportError, match="knows no broker now"):
            await asyncio.to_thread(hasty.partitions)
        patient = batch_reader(servers(group), subscribe="T", timeoutMs="200")
        planning = asyncio.create_task(asyncio.to_thread(patient.partitions))
        await asyncio.sleep(0.7)
        await group.master()
        planned = await planning
        assert bodies(await asyncio.to_thread(rows_of, patient, planned)) == ["1", "2"]
        await asyncio.to_thread(close_links)


async def test_a_broker_that_comes_back_between_two_questions_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server knows no route of the topic, and a moment later, asked for its brokers, it knows one."""
    here = asyncio.get_running_loop()
    check_brokers = discovery._check_brokers
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        await sent(group, "1")
        await asyncio.to_thread(close_links)
        await group.stop(master)

        async def back_meanwhile(cluster: Cluster) -> None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(group.master(), here))
            await check_brokers(cluster)

        monkeypatch.setattr(discovery, "_check_brokers", back_meanwhile)
        reader = batch_reader(servers(group), subscribe="T", retryTimeout="0ms")
        planned = await asyncio.to_thread(reader.partitions)
        assert bodies(await asyncio.to_thread(rows_of, reader, planned)) == ["1"]
        await asyncio.to_thread(close_links)


async def test_a_slave_that_is_behind_its_dead_master_is_no_end_and_its_master_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", -1.0)  # a slave alone serves what it has at once
    async with group_of_brokers(tmp_path) as group:
        at = servers(group)
        master, slave = await group.master(), await group.slave()
        await sent(group, "1", "2")
        await copied(master, slave)
        await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
        await group.stop(slave)
        await sent(group, "3")
        stream = stream_reader(at, subscribe="T", startingOffsets="earliest")
        end, got = await step(stream, await asyncio.to_thread(stream.initialOffset))
        assert got == ["1", "2", "3"]
        await group.stop(master)
        await group.slave()

        assert await step(stream, end) == (end, []), "the queue waits where it is"
        assert "not read until its master is back: on a slave" in caplog.text
        (queue,) = [one for one, offset in from_json(end).items() if offset]
        whole = RangesPartition([QueueRange(queue, 0, 3)])
        hasty = batch_reader(at, subscribe="T", retryTimeout="0ms")
        with pytest.raises(TransportError, match=r"a slave of .* has not got message 2 of"):
            await asyncio.to_thread(rows_of, hasty, [whole])
        of_slave = RangesPartition([QueueRange(queue, 0, 2)])
        assert bodies(await asyncio.to_thread(rows_of, hasty, [of_slave])) == ["1", "2"], "it gives what it has"

        patient = batch_reader(at, subscribe="T")
        reading = asyncio.create_task(asyncio.to_thread(rows_of, patient, [whole]))
        await asyncio.sleep(0.3)
        assert not reading.done()
        await group.master()
        assert bodies(await reading) == ["1", "2", "3"]
        await sent(group, "4")
        assert (await step(stream, end))[1] == ["4"]
        await asyncio.to_thread(close_links)
