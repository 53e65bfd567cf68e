"""What a slave knows when it becomes the master: what was delivered is not delivered again, and what was not, is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orbitmq as mq
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.replication import metadata
from orbitmq.broker.replication import slave as slave_module
from orbitmq.broker.replication.agreement import MasterLog, master_log
from orbitmq.errors import StoreFull
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.storage import written_here
from orbitmq.storage.replica import Replica
from orbitmq.storage.store import Store
from orbitmq.transport.address import Address
from tests.broker.kit import MAX_OFFSET, QUERY_MESSAGE, QUERY_OFFSET, UPDATE_OFFSET, Wire, messages_of
from tests.replication.kit import Group, copied, until, wire

if TYPE_CHECKING:
    import pytest

    from orbitmq.broker.broker import Broker
    from orbitmq.broker.replication.metadata import MasterTables
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.storage.tables import OffsetTable
    from orbitmq.transport.pool import Pool

FAR_MS = 3_600_000
QUEUE: Final = {"topic": "T", "queueId": 0}
G_IN_T: Final = {"consumerGroup": "G", **QUEUE}

# What shows messages, where queues end, or how far groups are.
HELD_BACK: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)
# What operators choose a master by.
ALWAYS_ANSWERED: Final = (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_HA_STATUS)


class Pair(NamedTuple):
    master: Broker
    slave: Broker
    client: Wire  # of the master
    copying: Copying
    tables: MasterTables


async def pair_with_a_message(group: Group) -> Pair:
    """Master and slave have the message "one" and know of group G, which has done nothing yet."""
    master, slave = await group.master(), await group.slave()
    client = wire(master)
    await client.heartbeat("c", "G", {"T": "*"})
    assert (await client.send("T", b"one", KEYS="one")).code == ResponseCode.SUCCESS
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    copying, tables = slave.state.copying, slave.state.master_tables
    assert copying is not None
    assert tables is not None
    return Pair(master, slave, client, copying, tables)


async def commit(client: Wire, offset: int) -> None:
    header = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    assert (await client.ask(UPDATE_OFFSET, header)).code == ResponseCode.SUCCESS


async def stopped_pair(group: Group) -> None:
    """Two stores that both have the message "one"."""
    pair = await pair_with_a_message(group)
    await pair.client.close()
    await group.stop(pair.slave)
    await group.stop(pair.master)


async def master_with_more_than_its_slave(group: Group) -> None:
    """Two stores that have the message "one", of which group G had done none; the master's has "here only", too, and G had done both."""
    pair = await pair_with_a_message(group)
    await commit(pair.client, 0)
    await pair.tables.sync()
    await group.stop(pair.slave)
    assert (await pair.client.send("T", b"here only")).code == ResponseCode.SUCCESS
    await commit(pair.client, 2)
    await pair.client.close()
    await group.stop(pair.master)


def may_serve(slave: Broker) -> bool:
    return slave.state.copying is not None and slave.state.copying.may_serve


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


async def test_delays_that_the_master_delivered_are_not_delivered_by_its_heir_and_the_others_are(group: Group) -> None:
    master, slave = await group.master(messageDelayLevel="1s 1h"), await group.slave(messageDelayLevel="1s 1h")
    client = wire(master)
    for body, level in ((b"soon", "1"), (b"far", "2"), (b"further", "2")):
        assert (await client.send("T", body, DELAY=level)).code == ResponseCode.SUCCESS
    await until(lambda: master.state.store.queue_range("T", 0).max_offset == 1, "the first is delivered")
    await copied(master, slave)
    assert slave.state.master_tables is not None
    await slave.state.master_tables.sync()
    await client.close()
    await group.stop(master)
    await group.stop(slave)
    folder = Path(slave.configuration.settings.store_path_root_dir)
    saved = json.loads((folder / "config" / "delayOffset.json").read_bytes())
    assert saved["offsetTable"] == {"1": 1, "2": 0}
    heir = await group.master(folder="slave-1", messageDelayLevel="1s 1h")
    client = wire(heir)
    assert heir.state.delayed.progress() == {1: (1, 1), 2: (0, 2)}
    assert await client.bodies("T") == [b"soon"]

    changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"messageDelayLevel=1s 1s")

    assert changed.code == ResponseCode.SUCCESS
    await until(lambda: heir.state.store.queue_range("T", 0).max_offset == 3, "the others are delivered")
    assert await client.bodies("T") == [b"soon", b"far", b"further"]
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
    _, slave, client, copying, tables = await pair_with_a_message(group)
    address, ha_address = copying.master, copying.ha_address
    monkeypatch.setattr(slave.state.registration, "_follow", None)  # which would name the port of the log again
    copying.follow(address, None)  # no more of the log
    await until(lambda: not copying.is_connected, "the connection to the log is closed")
    await client.send("T", b"two")
    await commit(client, 2)
    await tables.sync()
    assert slave.state.offsets.get("G", "T", 0) != 2, "it would pass over a message that it does not have"
    copying.follow(address, ha_address)
    await until(lambda: slave.state.offsets.get("G", "T", 0) == 2, "the offset came with the message")
    assert slave.state.store.queue_range("T", 0).max_offset == 2
    await client.close()


async def test_what_a_former_master_answers_late_is_not_taken_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave, client, copying, tables = await pair_with_a_message(group)

    async def while_another_takes_over(pool: Pool, address: Address) -> MasterLog:
        answer = await master_log(pool, address)
        copying.follow(Address("127.0.0.1", 1), None)
        return answer

    monkeypatch.setattr(metadata, "master_log", while_another_takes_over)
    await commit(client, 1)
    copying.follow(master.address, None)
    await tables.sync()
    assert slave.state.offsets.get("G", "T", 0) is None
    await client.close()


async def test_a_slave_serves_nothing_before_it_has_compared_its_log(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped_pair(group)
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", 1e9)
    slave = await group.slave()
    client = wire(slave)
    for refused in (
        await client.pull("T"),
        await client.ask(MAX_OFFSET, QUEUE),
        await client.ask(QUERY_OFFSET, G_IN_T),
    ):
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "has not compared" in (refused.remark or "")
    await group.master()
    await slave.state.registration.start()  # the regular one comes within ten seconds
    await until(lambda: may_serve(slave), "the logs are compared")
    assert await client.bodies("T") == [b"one"]
    await client.close()


async def test_a_slave_without_a_master_serves_what_it_has(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await stopped_pair(group)
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", -1.0)
    slave = await group.slave()
    client = wire(slave)
    assert await client.bodies("T") == [b"one"]
    await client.close()


async def test_a_former_master_tells_nothing_of_its_log_before_it_has_compared_it_however_long_it_waits(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may be out of reach and yet have acknowledged other messages at the same offsets."""
    await master_with_more_than_its_slave(group)
    heir = await group.master(folder="slave-1")
    client = wire(heir)
    await client.send("T", b"instead", KEYS="instead")
    await client.close()
    await group.stop(heir)

    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", -1.0)
    former = await group.slave(folder="master")
    client = wire(former)
    refused = await client.pull("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "was a master" in (refused.remark or "")
    assert "start this broker as the master" in (refused.remark or "")
    answers = {code: (await client.ask(code)).code for code in HELD_BACK}
    assert answers == dict.fromkeys(HELD_BACK, ResponseCode.SYSTEM_BUSY)
    for code in ALWAYS_ANSWERED:
        assert (await client.ask(code)).code == ResponseCode.SUCCESS

    heir = await group.master(folder="slave-1")
    await former.state.registration.start()  # the regular one comes within ten seconds
    await copied(heir, former)
    assert await client.bodies("T") == [b"one", b"instead"]
    by_key = {"topic": "T", "key": "instead", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62}
    assert [message.body for message in messages_of(await client.ask(QUERY_MESSAGE, by_key))] == [b"instead"]
    await until(lambda: not (tmp_path / "master" / written_here.NAME).exists(), "it has its successor's positions")
    assert (await client.ask(QUERY_OFFSET, G_IN_T)).fields["offset"] == "0", "not that of what is cut off"
    answers = {code: (await client.ask(code)).code for code in HELD_BACK}
    assert ResponseCode.SYSTEM_BUSY not in answers.values()
    await client.close()
    await group.stop(former)
    await group.stop(heir)

    former = await group.slave(folder="master")
    client = wire(former)
    assert await client.bodies("T") == [b"one", b"instead"], "it is a copy now, as any slave's"
    assert (await client.ask(QUERY_OFFSET, G_IN_T)).fields["offset"] == "0"
    await client.close()


async def test_a_former_master_takes_no_positions_over_before_it_has_the_log_that_they_speak_of(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is longer than its successor's by what is cut off, so the end alone does not say."""
    await master_with_more_than_its_slave(group)
    heir = await group.master(folder="slave-1")
    client = wire(heir)
    await client.send("T", b"x")  # less than what is cut off
    await client.close()
    done: list[str] = []
    cut, take_over = Replica.cut, ConsumerOffsets.take_over

    def noted_cut(replica: Replica, end: int, keep_in: Path | None = None) -> None:
        done.append("cut")
        cut(replica, end, keep_in)

    def noted_take_over(
        offsets: ConsumerOffsets, table: OffsetTable, log_end: int, *, forget_own: bool = False
    ) -> None:
        done.append("positions")
        take_over(offsets, table, log_end, forget_own=forget_own)

    monkeypatch.setattr(Replica, "cut", noted_cut)
    monkeypatch.setattr(ConsumerOffsets, "take_over", noted_take_over)
    former = await group.slave(folder="master")
    await until(lambda: not (tmp_path / "master" / written_here.NAME).exists(), "it follows its successor")
    assert done[:2] == ["cut", "positions"]
    await copied(heir, former)
    assert former.state.offsets.get("G", "T", 0) == 0


async def test_what_a_former_master_could_not_sync_after_a_cut_is_compared_again(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await master_with_more_than_its_slave(group)
    heir = await group.master(folder="slave-1")

    def full(_store: Store) -> None:
        raise StoreFull("the disk is full", hint="make room")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "flush", full)
        former = await group.slave(folder="master")
        await until(lambda: may_serve(former), "the logs are compared")
        assert former.state.store.log.end == heir.state.store.log.end
        assert (tmp_path / "master" / written_here.NAME).exists()
    await until(lambda: not (tmp_path / "master" / written_here.NAME).exists(), "the cut is on the disk")
    await copied(heir, former)


async def test_a_client_asks_the_next_slave_where_one_may_not_tell_yet(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await pair_with_a_message(group)
    second = await group.slave(2)
    await copied(pair.master, second)
    await until(lambda: second.state.topics.get("T") is not None, "the second slave knows the topic")
    await pair.client.close()
    await group.stop(pair.slave)
    await group.stop(pair.master)
    monkeypatch.setattr(slave_module, "_DOUBT_SECONDS", 1e9)
    await group.slave(1)  # has not compared, and is asked first
    async with mq.connect(str(group.name_server.address)) as client:
        async with client.pull_consumer(group="G") as puller:
            (queue,) = [queue for queue in await puller.queues("T") if queue.queue_id == 0]
            assert await puller.max_offset(queue) == 1
            assert [message.body for message in await puller.fetch(queue, offset=0, max=9)] == [b"one"]
        async with client.consumer("T", group="G", start="earliest") as consumer:
            async for message in consumer:
                async with message.process():
                    assert message.body == b"one"
                break
