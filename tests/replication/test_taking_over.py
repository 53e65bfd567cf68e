"""What a slave knows when it becomes the master: what was delivered is not delivered again, and what was not, is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.replication import metadata
from orbitmq.broker.replication import slave as slave_module
from orbitmq.broker.replication.agreement import MasterLog, master_log
from orbitmq.errors import StoreFull
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage import written_here
from orbitmq.storage.store import Store
from orbitmq.transport.address import Address
from tests.broker.kit import UPDATE_OFFSET, Wire
from tests.replication.kit import Group, copied, group_of_brokers, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.transport.pool import Pool

FAR_MS = 3_600_000


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with group_of_brokers(tmp_path) as running:
        yield running


def wire(broker: Broker) -> Wire:
    assert broker.address is not None
    return Wire(broker.address)


async def send_timer(client: Wire, body: bytes, due_ms: int) -> None:
    assert (await client.send("T", body, TIMER_DELIVER_MS=str(due_ms))).code == ResponseCode.SUCCESS


def deliver_all_due(broker: Broker) -> None:
    assert broker.state.timers is not None
    while broker.state.timers.turn() == 0:
        pass


async def test_timers_that_the_master_delivered_are_not_delivered_by_its_heir(group: Group) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    now_ms = master.state.clock.now_ms()
    await send_timer(client, b"soon", now_ms + 200)
    await send_timer(client, b"far", now_ms + FAR_MS)
    await until(lambda: master.state.store.queue_range("T", 0).max_offset == 1, "the first timer is delivered")
    await copied(master, slave)
    assert slave.state.master_tables is not None
    await slave.state.master_tables.sync()
    await client.close()
    await group.stop(master)
    await group.stop(slave)
    heir = await group.master(folder="slave-1")
    assert heir.state.timers is not None
    deliver_all_due(heir)
    client = wire(heir)
    assert await client.bodies("T") == [b"soon"]
    assert heir.state.timers.wheel.count_between(now_ms + FAR_MS // 2, now_ms + 2 * FAR_MS) == 1, (
        "the other waits on its wheel"
    )
    await client.close()


async def test_timers_that_came_after_the_last_look_are_on_the_heirs_wheel(group: Group) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    now_ms = master.state.clock.now_ms()
    assert slave.state.master_tables is not None
    await slave.state.master_tables.sync()
    await send_timer(client, b"far", now_ms + FAR_MS)
    await copied(master, slave)
    await client.close()
    await group.stop(master)
    await group.stop(slave)
    heir = await group.master(folder="slave-1")
    assert heir.state.timers is not None
    deliver_all_due(heir)
    assert heir.state.timers.wheel.count_between(now_ms + FAR_MS // 2, now_ms + 2 * FAR_MS) == 1


async def test_offsets_are_taken_over_with_the_log_they_speak_of(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.heartbeat("c", "G", {"T": "*"})
    await client.send("T", b"one")
    await copied(master, slave)
    copying, tables = slave.state.copying, slave.state.master_tables
    assert copying is not None
    assert tables is not None
    address, ha_address = copying.master, copying.ha_address
    monkeypatch.setattr(slave.state.registration, "_follow", None)  # which would name the port of the log again
    copying.follow(address, None)  # no more of the log
    await until(lambda: not copying.is_connected, "the connection to the log is closed")
    await client.send("T", b"two")
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "2"}
    assert (await client.ask(UPDATE_OFFSET, commit)).code == 0
    await tables.sync()
    assert slave.state.offsets.get("G", "T", 0) != 2, "it would pass over a message that it does not have"
    copying.follow(address, ha_address)
    await until(lambda: slave.state.offsets.get("G", "T", 0) == 2, "the offset came with the message")
    assert slave.state.store.queue_range("T", 0).max_offset == 2
    await client.close()


async def test_what_a_former_master_answers_late_is_not_taken_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.heartbeat("c", "G", {"T": "*"})
    await client.send("T", b"one")
    await copied(master, slave)
    copying, tables = slave.state.copying, slave.state.master_tables
    assert copying is not None
    assert tables is not None

    async def while_another_takes_over(pool: Pool, address: Address) -> MasterLog:
        answer = await master_log(pool, address)
        copying.follow(Address("127.0.0.1", 1), None)
        return answer

    monkeypatch.setattr(metadata, "master_log", while_another_takes_over)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await client.ask(UPDATE_OFFSET, commit)).code == 0
    copying.follow(master.address, None)
    await tables.sync()
    assert slave.state.offsets.get("G", "T", 0) is None
    await client.close()


async def test_a_slave_serves_nothing_before_it_has_compared_its_log(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.send("T", b"one")
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    await client.close()
    await group.stop(slave)
    await group.stop(master)
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", 1e9)
    slave = await group.slave()
    client = wire(slave)
    refused = await client.pull("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "has not compared" in (refused.remark or "")
    await group.master()
    await slave.state.registration.start()  # the regular one comes within ten seconds
    await until(lambda: slave.state.copying is not None and slave.state.copying.may_serve, "the logs are compared")
    assert await client.bodies("T") == [b"one"]
    await client.close()


async def test_a_slave_without_a_master_serves_what_it_has(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.send("T", b"one")
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    await client.close()
    await group.stop(slave)
    await group.stop(master)
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", -1.0)
    slave = await group.slave()
    client = wire(slave)
    assert await client.bodies("T") == [b"one"]
    await client.close()


async def test_a_former_master_serves_nothing_before_it_has_compared_its_log_however_long_it_waits(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may be out of reach and yet have acknowledged other messages at the same offsets."""
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.send("T", b"one")
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    await group.stop(slave)
    await client.send("T", b"here only")
    await client.close()
    await group.stop(master)
    heir = await group.master(folder="slave-1")
    client = wire(heir)
    await client.send("T", b"instead")
    await client.close()
    await group.stop(heir)

    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", -1.0)
    former = await group.slave(folder="master")
    client = wire(former)
    refused = await client.pull("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "was a master" in (refused.remark or "")

    heir = await group.master(folder="slave-1")
    await former.state.registration.start()  # the regular one comes within ten seconds
    await copied(heir, former)
    assert await client.bodies("T") == [b"one", b"instead"]
    await client.close()
    await group.stop(former)
    await group.stop(heir)

    former = await group.slave(folder="master")
    client = wire(former)
    assert await client.bodies("T") == [b"one", b"instead"], "it is a copy now, as any slave's"
    await client.close()


async def test_what_a_former_master_could_not_sync_after_a_cut_is_compared_again(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.send("T", b"one")
    await copied(master, slave)
    await group.stop(slave)
    await client.send("T", b"here only")
    await client.close()
    await group.stop(master)
    heir = await group.master(folder="slave-1")

    def full(_store: Store) -> None:
        raise StoreFull("the disk is full", hint="make room")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "flush", full)
        former = await group.slave(folder="master")
        await until(
            lambda: former.state.copying is not None and former.state.copying.may_serve, "the logs are compared"
        )
        assert former.state.store.log.end == heir.state.store.log.end
        assert (tmp_path / "master" / written_here.NAME).exists()
    await until(lambda: not (tmp_path / "master" / written_here.NAME).exists(), "the cut is on the disk")
    await copied(heir, former)
