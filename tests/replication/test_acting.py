"""A slave in its master's place: what it does, what it leaves alone, and what its master knows when it is back."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker import names
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.replication import handing_back
from orbitmq.broker.replication.agreement import MasterLog, master_log
from orbitmq.broker.replication.escape import Escape
from orbitmq.broker.replication.slave_timers import SlaveTimers
from orbitmq.clock import ManualClock
from orbitmq.errors import ConnectionLost
from orbitmq.message.sysflags import TRANSACTION_COMMIT
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.lease_texts import retry_topic_v1
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.tables import DataVersion, OffsetTable
from tests.broker.kit import (
    PATIENCE_SECONDS,
    QUERY_OFFSET,
    UPDATE_OFFSET,
    Wire,
    configuration,
    messages_of,
    pull_header,
)
from tests.broker.lease_kit import LeaseClient
from tests.nameserver.running import running as running_name_server
from tests.replication.kit import Group, copied, until, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.message.record import RawRecord
    from orbitmq.transport.address import Address
    from orbitmq.transport.pool import Pool

ACTING: dict[str, Any] = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "syncBrokerMemberGroupPeriod": 50,
    "brokerNotActiveTimeoutMillis": 600_000,  # a machine that stands still has not died
    "messageDelayLevel": "1s 2h",
    "brokerClusterName": "acting",
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def group(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Group]:
    async with running_name_server(tmp_path / "names", supportActingMaster=True) as name_server:
        group = Group(tmp_path, name_server, clock)
        try:
            yield group
        finally:
            await group.stop_all()


async def pair(group: Group) -> tuple[Broker, Broker, Broker]:
    """A master, its slave, and a master of another name."""
    master = await group.master(**ACTING)
    slave = await group.slave(**ACTING)
    other = await group.master("other", **{**ACTING, "brokerName": "broker-b"})
    await all_alive(slave, 0, 1)
    return master, slave, other


async def all_alive(broker: Broker, *ids: int) -> None:
    """Wait until the name server knows them."""
    assert broker.state.members is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while set(await broker.state.members.alive()) != set(ids):
            await asyncio.sleep(0.01)


async def master_dies(group: Group, master: Broker, slave: Broker) -> None:
    await copied(master, slave)
    assert slave.state.master_tables is not None
    await slave.state.master_tables.sync()
    await group.stop(master)
    assert slave.state.acting is not None
    acting = slave.state.acting
    await until(lambda: acting.is_acting, "the slave acts")


def messages_in(broker: Broker, topic: str) -> int:
    return sum(high for _, high in (broker.state.store.queue_range(topic, queue_id) for queue_id in range(8)))


async def bodies(broker: Broker, topic: str) -> list[bytes]:
    """Of all queues."""
    config = broker.state.topics.get(topic)
    client = wire(broker)
    found: list[bytes] = []
    for queue_id in range(config.read_queue_nums if config is not None else 0):
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_header(topic, queue_id, 0))
        if answer.code == ResponseCode.SUCCESS:
            found += [message.body for message in messages_of(answer)]
    await client.close()
    return found


async def create_group(client: Wire) -> None:
    group = {"groupName": "g", "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1}
    created = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode())
    assert created.code == 0


async def create_topic(client: Wire, topic: str, attributes: str = "") -> None:
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": "false", "topicSysFlag": 0}
    fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "attributes": attributes}
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**queues, **fields})).code == 0


async def commit(broker: Broker, offset: int) -> None:
    client = wire(broker)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
    assert (await client.ask(UPDATE_OFFSET, fields)).code == 0
    await client.close()


async def committed(broker: Broker) -> int | None:
    """None while a slave does not tell, because it has not compared its log with its master's yet."""
    client = wire(broker)
    answer = await client.ask(QUERY_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": 0})
    await client.close()
    if answer.code == ResponseCode.SYSTEM_BUSY:
        return None
    return int(answer.fields["offset"])


async def test_offsets_and_locks_are_kept_and_the_master_takes_the_offsets_back(group: Group) -> None:
    master, slave, _ = await pair(group)
    client = wire(master)
    for number in range(10):
        assert (await client.send("T", b"%d" % number)).code == 0
    await create_group(client)
    await client.close()
    await commit(master, 3)
    await master_dies(group, master, slave)
    assert await committed(slave) == 3
    await commit(slave, 7)
    client = wire(slave)
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    locked = await client.ask(
        RequestCode.LOCK_BATCH_MQ, {}, json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}).encode()
    )
    assert locked.code == 0
    assert json.loads(locked.body)["lockOKMQSet"] == [queue]
    assert (await client.send("T", b"no")).code == ResponseCode.SYSTEM_BUSY
    await client.close()

    # A slave that finds its master before that has asked and registered keeps what it knows.
    master = await group.master(**{**ACTING, "namesrvAddr": ""})
    assert slave.state.copying is not None
    assert slave.state.master_tables is not None
    slave.state.copying.follow(master.address, master.state.registration.ha_address)
    await slave.state.master_tables.sync()
    assert await committed(master) == 3
    assert slave.state.offsets.get("g", "T", 0) == 7  # it does not tell before it has compared its log again
    await group.stop(master)

    master = await group.master(**ACTING)
    assert await committed(master) == 7
    acting = slave.state.acting
    assert acting is not None
    await until(lambda: not acting.is_acting, "the slave has stepped down")
    await commit(master, 9)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await committed(slave) != 9:  # it follows again once it knows that its master is registered
            await slave.state.master_tables.sync()


async def test_delays_and_timers_that_are_due_go_to_another_master_and_do_not_come_twice(
    group: Group, clock: ManualClock
) -> None:
    master, slave, other = await pair(group)
    client = wire(master)
    assert (await client.send("T", b"level", DELAY="1")).code == 0
    assert (await client.send("T", b"timer", TIMER_DELAY_MS="1500")).code == 0
    assert (await client.send("T", b"much later", DELAY="2")).code == 0
    assert (await client.send("T", b"later", TIMER_DELAY_SEC="3600")).code == 0
    await client.close()
    await master_dies(group, master, slave)
    clock.advance(seconds=5)

    await until(lambda: messages_in(other, "T") == 2, "both are on the other master")
    assert sorted(await bodies(other, "T")) == [b"level", b"timer"]

    master = await group.master(**ACTING)
    await until(lambda: master.state.delayed.progress().get(1) == (1, 1), "the master passed over the level's message")
    timers = master.state.timers
    assert timers is not None
    await until(lambda: timers.counts.total() == 1 and not timers.queue_behind, "and over the timer")
    assert await bodies(master, "T") == []
    assert sorted(await bodies(other, "T")) == [b"level", b"timer"]


async def test_an_open_transaction_becomes_one_of_another_master(group: Group) -> None:
    master, slave, other = await pair(group)
    client = wire(master)
    assert (await client.send("T", b"half", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="7F000001AAAA")).code == 0
    await client.close()
    await master_dies(group, master, slave)
    await until(lambda: len(other.state.half_messages) == 1, "the other master has the transaction")
    assert other.state.half_messages.by_topic() == {"T": 1}
    assert slave.state.store.queue_range(names.HALF_TOPIC, 0).max_offset == 1  # nothing was stored here

    master = await group.master(**ACTING)
    assert len(master.state.half_messages) == 0
    assert len(other.state.half_messages) == 1


async def test_what_only_the_master_had_is_delivered_by_it_when_it_is_back(group: Group, clock: ManualClock) -> None:
    master, slave, other = await pair(group)
    client = wire(master)
    assert (await client.send("T", b"copied", TIMER_DELAY_MS="1500")).code == 0
    await copied(master, slave)
    await group.stop(slave)
    assert (await client.send("T", b"not copied", TIMER_DELAY_MS="1500")).code == 0
    await client.close()
    await group.stop(master)
    slave = await group.slave(**ACTING)
    clock.advance(seconds=5)
    await until(lambda: messages_in(other, "T") == 1, "the slave delivers what it has")
    master = await group.master(**ACTING)
    await until(lambda: messages_in(master, "T") == 1, "the master delivers the rest")
    assert await bodies(other, "T") == [b"copied"]
    assert await bodies(master, "T") == [b"not copied"]


async def test_a_master_that_lost_its_tail_delivers_again_what_it_lost(
    group: Group, clock: ManualClock, tmp_path: Path
) -> None:
    master, slave, _ = await pair(group)
    client = wire(master)
    assert (await client.send("T", b"level", DELAY="1")).code == 0
    assert (await client.send("T", b"timer", TIMER_DELAY_MS="1500")).code == 0
    half = await client.send("T", b"half", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="7F000001AAAA")
    await copied(master, slave)
    timers, store = master.state.timers, master.state.store
    assert timers is not None
    await until(lambda: not timers.queue_behind, "the timer is on the wheel")
    await asyncio.to_thread(store.flush)
    await timers.save()
    await master.state.delayed.save()
    await master.state.offsets.save()
    shutil.copytree(tmp_path / "master", tmp_path / "on the device")

    clock.advance(seconds=5)
    await until(lambda: messages_in(master, "T") == 2, "the master delivers both")
    commit_half = {
        "producerGroup": "p",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": store.queue_entries(names.HALF_TOPIC, 0, 0, 1)[0][0],  # type: ignore[index]
        "commitOrRollback": TRANSACTION_COMMIT,
        "msgId": "7F000001AAAA",
    }
    await client.ask(RequestCode.END_TRANSACTION, commit_half)
    await client.close()
    await until(lambda: messages_in(master, "T") == 3, "and the transaction is committed")
    master.state.half_messages.record_decisions()
    master.state.half_messages.save_progress()
    await copied(master, slave)
    assert slave.state.master_tables is not None
    await slave.state.master_tables.sync()
    assert slave.state.delayed.progress() == {1: (1, 1)}
    await group.stop(master)
    shutil.rmtree(tmp_path / "master")
    shutil.move(tmp_path / "on the device", tmp_path / "master")

    master = await group.master(**ACTING)
    await until(lambda: messages_in(master, "T") == 2, "the master delivers both again")
    assert sorted(await bodies(master, "T")) == [b"level", b"timer"]
    assert len(master.state.half_messages) == 1  # nothing here says that it was decided


async def test_messages_whose_lease_is_over_are_handed_out_by_another_master(group: Group, clock: ManualClock) -> None:
    master, slave, other = await pair(group)
    client, elsewhere = wire(master), wire(other)
    await create_group(client)
    await create_group(elsewhere)
    assert (await elsewhere.send("T", b"its own")).code == 0
    for body in (b"acknowledged", b"not"):
        assert (await client.send("T", body)).code == 0
    consumer = LeaseClient(client, "g")
    first, second = await consumer.pop("T", invisibleTime=20_000)
    assert first.body == b"acknowledged"
    assert (await consumer.ack(first)).code == 0
    await client.close()
    await master_dies(group, master, slave)
    clock.advance(seconds=30)
    retry = retry_topic_v1("g", "T")
    await until(lambda: messages_in(other, retry) == 1, "the other master has it")
    again = await LeaseClient(elsewhere, "g", "broker-b").pop("T")
    assert {(leased.body, leased.message.reconsume_times) for leased in again} == {(b"its own", 0), (b"not", 1)}
    assert other.state.groups.get("g_T") is None, "the retry topic of a lease is no group's"
    await elsewhere.close()

    master = await group.master(**ACTING)
    timers = master.state.timers
    assert timers is not None
    await until(lambda: timers.done_until_ms() > second.handle.pop_time_ms + 22_000, "the master's timer is past it")
    await master.state.reviving.round()
    assert messages_in(master, retry) == 0
    assert messages_in(other, retry) == 1


async def test_a_lease_of_what_cannot_come_back_holds_up_no_other(
    group: Group, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such leases were taken before the length of their retry topic's name was checked."""
    master, slave, other = await pair(group)
    client, elsewhere = wire(master), wire(other)
    await create_group(client)
    await create_group(elsewhere)
    await elsewhere.close()
    long_topic = "%DLQ%" + "t" * 250
    with monkeypatch.context() as patch:
        patch.setattr(names, "can_be_leased", lambda group, topic: True)
        assert (await client.send(long_topic, b"lost")).code == 0
        assert len(await LeaseClient(client, "g").pop(long_topic, invisibleTime=20_000)) == 1
    assert (await client.send("T", b"not")).code == 0
    assert len(await LeaseClient(client, "g").pop("T", invisibleTime=22_000)) == 1
    await client.close()
    await master_dies(group, master, slave)
    clock.advance(seconds=40)
    await until(lambda: messages_in(other, retry_topic_v1("g", "T")) == 1, "the other master has it")


async def test_acks_are_read_once_for_all_leases_that_end(
    group: Group, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave, other = await pair(group)
    client = wire(master)
    await create_group(client)
    consumer = LeaseClient(client, "g")
    leases = 20
    for number in range(leases):
        assert (await client.send("T", b"%d" % number)).code == 0
        for leased in await consumer.pop("T", invisibleTime=20_000):
            assert (await consumer.ack(leased)).code == 0
    assert (await client.send("T", b"afterwards", TIMER_DELAY_SEC="40")).code == 0
    await client.close()
    await master_dies(group, master, slave)
    read = 0
    due_for = SlaveTimers.due_for

    def counted(timers: SlaveTimers, goal: str, start_ms: int, stop_ms: int) -> Iterator[RawRecord]:
        nonlocal read
        for entry in due_for(timers, goal, start_ms, stop_ms):
            read += 1
            yield entry

    monkeypatch.setattr(SlaveTimers, "due_for", counted)
    clock.advance(seconds=60)
    await until(lambda: messages_in(other, "T") == 1, "what is behind the leases is delivered")
    assert messages_in(other, retry_topic_v1("g", "T")) == 0
    assert leases <= read <= 2 * leases  # a lease and its ack each


async def test_a_slave_that_cannot_be_asked_for_a_moment_is_asked_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.master(**ACTING), await group.slave(**ACTING)
    await all_alive(slave, 0, 1)
    client = wire(master)
    for number in range(10):
        assert (await client.send("T", b"%d" % number)).code == 0
    await create_group(client)
    await client.close()
    await master_dies(group, master, slave)
    await commit(slave, 7)
    tries = 0

    async def busy_at_first(pool: Pool, address: Address) -> MasterLog:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionLost("the slave stands still")
        return await master_log(pool, address)

    monkeypatch.setattr(handing_back, "master_log", busy_at_first)
    master = await group.master(**ACTING)
    assert tries == 2
    assert await committed(master) == 7


async def test_what_one_master_refuses_holds_up_nothing_else_and_comes_once(
    group: Group, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await group.master(**ACTING), await group.slave(**ACTING)
    small = {"brokerName": "broker-b", "maxMessageSize": 1000, "autoCreateTopicEnable": "false"}
    other = await group.master("other", **{**ACTING, **small})
    await all_alive(slave, 0, 1)
    client, elsewhere = wire(master), wire(other)
    await create_group(client)
    await create_group(elsewhere)
    await create_topic(elsewhere, "T")
    await create_topic(elsewhere, "OnlyDelayed", "+message.type=DELAY")
    for body in (b"first", b"too large for the other" * 100, b"second"):
        assert (await client.send("T", body)).code == 0
    assert len(await LeaseClient(client, "g").pop("T", invisibleTime=20_000)) == 3
    assert (await client.send("T", b"timer", TIMER_DELAY_SEC="40")).code == 0
    assert (await client.send("OnlyDelayed", b"delayed", DELAY="1")).code == 0
    assert (await client.send("OnlyHere", b"waits", DELAY="1")).code == 0
    assert (await client.send("T", b"of another level", DELAY="2")).code == 0
    await client.close()

    refusals = 0
    deliver = Escape.deliver

    async def busy_at_first(escape: Escape, topic: str, message: RawRecord, **changed: str) -> bool:
        nonlocal refusals
        if bytes(message.body) == b"second" and refusals < 3:
            refusals += 1
            return False
        return await deliver(escape, topic, message, **changed)

    monkeypatch.setattr(Escape, "deliver", busy_at_first)
    await master_dies(group, master, slave)
    clock.advance(seconds=3 * 3600)
    await until(lambda: messages_in(other, "T") == 2, "what is behind the refused is delivered")
    await until(
        lambda: messages_in(other, "OnlyDelayed") == 1, "and what is refused without a sign that it was delayed"
    )
    assert sorted(await bodies(other, "T")) == [b"of another level", b"timer"]
    assert await bodies(other, "OnlyDelayed") == [b"delayed"]
    assert await bodies(other, retry_topic_v1("g", "T")) == [b"first", b"second"]  # made there though others are not
    assert refusals == 3
    assert "gave up a message of %RETRY%g_T" in caplog.text
    assert slave.state.delayed.progress() == {1: (1, 2), 2: (1, 1)}
    await elsewhere.close()


async def test_without_another_master_everything_waits_for_the_own(group: Group, clock: ManualClock) -> None:
    master = await group.master(**ACTING)
    slave = await group.slave(**ACTING)
    await all_alive(slave, 0, 1)
    client = wire(master)
    assert (await client.send("T", b"level", DELAY="1")).code == 0
    await client.close()
    await master_dies(group, master, slave)
    clock.advance(seconds=5)
    assert slave.state.acting is not None
    await slave.state.acting.round()
    assert slave.state.delayed.progress() == {1: (0, 1)}
    master = await group.master(**ACTING)
    await until(lambda: master.state.delayed.progress().get(1) == (1, 1), "the master delivers it")
    assert await bodies(master, "T") == [b"level"]


async def told_twice_that_it_is_alone(slave: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers know of the slave and nobody else; it has asked them, and decided, twice."""
    members, asked = slave.state.members, 0
    assert members is not None

    async def heard_of_the_slave_alone() -> dict[int, Address]:
        nonlocal asked
        asked += 1
        return {1: slave.state.registration.address}

    monkeypatch.setattr(members, "alive", heard_of_the_slave_alone)
    await until(lambda: asked == 3, "it has heard so twice, and decided")


async def test_a_slave_that_copies_from_its_master_does_not_act_whatever_name_servers_say(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.master(**ACTING), await group.slave(**ACTING)
    acting, copying = slave.state.acting, slave.state.copying
    assert acting is not None
    assert copying is not None
    await until(lambda: copying.is_connected, "the slave copies")
    await told_twice_that_it_is_alone(slave, monkeypatch)
    assert not acting.is_acting
    await group.stop(master)
    await until(lambda: acting.is_acting, "the slave acts once its master is gone")


async def test_a_former_master_does_not_act_before_it_has_followed_its_successor(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due in its log its successor may have done, and may have something else there."""
    await group.stop(await group.master(**ACTING))
    former = await group.slave(folder="master", **ACTING)
    await told_twice_that_it_is_alone(former, monkeypatch)
    assert former.state.acting is not None
    assert not former.state.acting.is_acting


async def test_only_the_slave_with_the_smallest_id_acts(group: Group) -> None:
    master = await group.master(**ACTING)
    first, second = await group.slave(1, **ACTING), await group.slave(2, **ACTING)
    await copied(master, first, second)
    await all_alive(second, 0, 1, 2)
    await group.stop(master)
    one, two = first.state.acting, second.state.acting
    assert one is not None
    assert two is not None
    await until(lambda: one.is_acting, "the first acts")
    assert not two.is_acting
    await group.stop(first)
    await until(lambda: two.is_acting, "the second acts when the first is gone, too")


def test_what_a_slave_did_counts_if_it_is_newer_and_never_beyond_what_the_master_has(tmp_path: Path) -> None:
    file = JsonFile(LocalDisk(), tmp_path / "offsets.json", OffsetTable)
    offsets = ConsumerOffsets(file, configuration(tmp_path), ManualClock())
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 5)

    def table(counter: int, *of_queues: int) -> OffsetTable:
        return OffsetTable(data_version=DataVersion(counter=counter), offset_table={"T@g": dict(enumerate(of_queues))})

    counter = offsets.version.counter
    offsets.take_back(table(counter, 3, 8), lambda topic, queue_id: 100)
    assert offsets.queues("g", "T") == {0: 5, 1: 8}
    offsets.take_back(table(counter + 1, 3, 1000), lambda topic, queue_id: 100)
    assert offsets.queues("g", "T") == {0: 3, 1: 100}
    assert offsets.version.counter > counter + 1  # slaves see that it changed


def test_offsets_of_light_queues_are_taken_over_and_back(tmp_path: Path) -> None:
    file = JsonFile(LocalDisk(), tmp_path / "offsets.json", OffsetTable)
    light = configuration(tmp_path, {"enableLmq": "true", "enableMultiDispatch": "true"})
    offsets = ConsumerOffsets(file, light, ManualClock())
    key = "%LMQ%q@%LMQ%g"

    def of_group() -> int | None:
        return offsets.get("%LMQ%g", "%LMQ%q", 0)

    offsets.take_over(OffsetTable(lmq_offset_table={key: 4}), log_end=0)
    assert of_group() == 4
    offsets.take_back(OffsetTable(data_version=offsets.version, lmq_offset_table={key: 3}), lambda topic, queue_id: 9)
    assert of_group() == 4
    newer = DataVersion(counter=offsets.version.counter + 1)
    offsets.take_back(OffsetTable(data_version=newer, lmq_offset_table={key: 12}), lambda topic, queue_id: 9)
    assert of_group() == 9
