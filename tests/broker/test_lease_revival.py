"""Leases that nobody settles: when their messages come back, how often, and where they end."""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from orbitmq.broker import names
from orbitmq.broker.leases.checkpoints import CHECKPOINT_TAG, Ack, Checkpoint
from orbitmq.broker.leases.lease_log import NEXT_OFFSET, LeaseLog
from orbitmq.broker.leases.positions import restore_positions
from orbitmq.broker.leases.reviving import GROUP
from orbitmq.errors import RequestFailed, StoreFull
from orbitmq.message import properties as keys
from orbitmq.protocol.codes import ResponseCode
from orbitmq.testing.clock import MovableClock
from tests.broker.kit import MAX_OFFSET, PATIENCE_SECONDS, Wire, no_table_saved, running, wire
from tests.broker.lease_kit import LeaseClient, Leased
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker

T, ONE_QUEUE = "Leases", {"default_topic_queue_nums": 1}
LEASE_MS = 10_000
SURELY_BACK_SECONDS = 4  # after the end of a lease
QUICK: dict[str, Any] = {"reviveInterval": 20}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock, **QUICK) as running_broker:
        yield running_broker


@pytest.fixture
def consumer(client: Wire) -> LeaseClient:
    return LeaseClient(client)


def bodies(leased: list[Leased]) -> list[bytes]:
    return [each.body for each in leased]


async def send(client: Wire, *texts: bytes) -> None:
    for text in texts:
        assert (await client.send(T, text, 0, header=ONE_QUEUE, TAGS="tag")).code == 0


async def pop_some(consumer: LeaseClient, **changes: Any) -> list[Leased]:
    """What comes, however long it takes to come."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (leased := await consumer.pop(T, invisibleTime=LEASE_MS, **changes)):
            await asyncio.sleep(0.02)
    return leased


async def settled(broker: Broker) -> None:
    """Wait until the timer and the readers of the revive topic have done all that is due."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(2):
            assert broker.state.timers is not None
            while broker.state.timers.done_until_ms() < broker.state.clock.now_ms() - 1000:
                await asyncio.sleep(0.02)
            await broker.state.reviving.round()


async def test_what_is_not_acknowledged_comes_back_and_what_is_does_not(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"a", b"b", b"c")
    leased = await pop_some(consumer)
    await consumer.ack(leased[1])
    clock.advance(ms=LEASE_MS)
    await settled(broker)
    assert await consumer.pop(T) == []  # an ack that is just in time may be on its way
    clock.advance(seconds=SURELY_BACK_SECONDS)
    again = await pop_some(consumer)
    assert bodies(again) == [b"a", b"c"]
    for first, second in zip([leased[0], leased[2]], again, strict=True):
        assert second.message.topic == T
        assert second.message.reconsume_times == 1
        assert second.handle.kind == "1"
        assert second.real_topic == "%RETRY%LG_Leases"
        told = second.message.properties
        assert told[keys.FIRST_POP_TIME] == str(first.handle.pop_time_ms)
        assert told[keys.UNIQUE_KEY] == first.message.properties[keys.UNIQUE_KEY]
        assert told[keys.TAGS] == "tag"
    await consumer.ack_batch(again)
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await settled(broker)
    assert await consumer.pop(T) == []
    assert len(broker.state.open_leases) == 0


async def test_an_extended_lease_lasts_longer_and_one_given_back_ends_sooner(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"longer", b"sooner")
    longer, sooner = await pop_some(consumer)
    await consumer.extended(longer, 60_000)
    await consumer.extended(sooner, 1000)
    clock.advance(seconds=1 + SURELY_BACK_SECONDS)
    assert bodies(await pop_some(consumer)) == [b"sooner"]
    clock.advance(ms=LEASE_MS)
    await settled(broker)
    assert b"longer" not in bodies(await consumer.pop(T))
    clock.advance(seconds=60)
    assert b"longer" in bodies(await pop_some(consumer, exp="tag"))


async def test_what_is_acknowledged_or_has_a_newer_handle_is_not_extended_and_does_not_come_back(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"before", b"in the same turn", b"twice")
    before, together, twice = await pop_some(consumer)
    assert (await consumer.ack(before)).code == 0
    assert (await consumer.extend(before, LEASE_MS)).code == ResponseCode.MESSAGE_ILLEGAL
    settling, handle = broker.state.settling, together.handle
    settling.ack("LG", T, 0, handle.offset, handle, lambda outcome: None)
    with pytest.raises(RequestFailed):
        settling.extend("LG", T, 0, handle.offset, handle, LEASE_MS)
    newer = await consumer.extended(twice, LEASE_MS)
    assert (await consumer.extend(twice, LEASE_MS)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await consumer.ack(newer)).code == 0
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await settled(broker)
    assert await consumer.pop(T) == []


async def test_a_message_that_fails_too_often_is_a_dead_letter(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    broker.state.groups.require("LG").retry_max_times = 2
    await send(client, b"poison", b"fine")
    for attempt in range(3):
        leased = await pop_some(consumer)
        assert leased[0].body == b"poison"
        assert leased[0].message.reconsume_times == attempt
        if attempt == 0:
            await consumer.ack(leased[1])
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while broker.state.topics.get("%DLQ%LG") is None or not (letters := await client.messages("%DLQ%LG")):
            await asyncio.sleep(0.02)
    (dead,) = letters
    assert (dead.body, dead.reconsume_times) == (b"poison", 3)
    assert dead.properties[keys.DLQ_ORIGIN_TOPIC] == T
    assert await consumer.pop(T) == []


async def test_a_waiting_pop_hears_of_a_message_that_comes_back(
    client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"a")
    await pop_some(consumer)
    held = await consumer.hold_pop(T)
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    answer = await asyncio.wait_for(held, PATIENCE_SECONDS)
    assert bodies(consumer.leased(T, answer)) == [b"a"]


@pytest.mark.parametrize(("retries", "goal"), [(16, f"%RETRY%LG_{T}"), (0, "%DLQ%LG")], ids=["retry", "dead letters"])
async def test_the_topic_by_which_a_message_comes_back_is_kept_before_it_is_in_there(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, retries: int, goal: str
) -> None:
    """A broker that is killed in between knows of no such topic when it is back, and would give its messages to nobody."""
    async with running(tmp_path, clock=clock, reviveInterval=3_600_000) as broker, wire(broker) as client:
        await send(client, b"a", b"b")
        await pop_some(LeaseClient(client))
        broker.state.groups.require("LG").retry_max_times = retries
        append, table = broker.state.store.append, tmp_path / "config" / "topics.json"
        kept: list[bool] = []

        def noted(topic: str, *details: Any) -> object:
            if topic == goal:
                kept.append(goal in table.read_text())
            return append(topic, *details)

        monkeypatch.setattr(broker.state.store, "append", noted)
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        assert kept == [True, True]


async def test_a_group_that_is_made_by_a_pop_is_kept_before_it_is_answered(tmp_path: Path, clock: MovableClock) -> None:
    """A broker that is killed in between knows of no such group when it is back, and would drop its leases."""
    async with running(tmp_path, clock=clock, reviveInterval=3_600_000) as broker, wire(broker) as client:
        await send(client, b"a", b"b", b"c")
        consumer = LeaseClient(client)
        with no_table_saved() as may_save:
            answers = [await consumer.hold_pop(T, maxMsgNums=1, pollTime=0) for _ in range(2)]
            await until(lambda: broker.state.open_leases.in_flight(T, "LG", 0) == 2, what="the leases")
            await client.ask(MAX_OFFSET, {"topic": T, "queueId": 0})  # answered behind what could be answered before it
            assert not any(answer.done() for answer in answers)
            may_save.set()
            assert [(await answer).code for answer in answers] == [0, 0]
        assert "LG" in (tmp_path / "config" / "subscriptionGroup.json").read_text()


@pytest.mark.parametrize("settings", [{"enableRetryTopicV2": True}, {"popResponseReturnActualRetryTopic": True}])
async def test_retry_topics_have_the_name_and_show_it_as_configured(
    tmp_path: Path, clock: MovableClock, settings: dict[str, Any]
) -> None:
    async with running(tmp_path, clock=clock, **QUICK, **settings) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await send(client, b"a")
        await pop_some(consumer)
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await consumer.ask_pop(T)).code != 0:
                await asyncio.sleep(0.02)
        if "enableRetryTopicV2" in settings:
            (again,) = consumer.leased(T, answer)
            assert (again.real_topic, again.message.topic) == ("%RETRY%LG+Leases", T)
            assert answer.fields["startOffsetInfo"] == "2 0 0"
            assert (await consumer.ack(again)).code == 0
        else:
            ((message),) = await client.messages("%RETRY%LG_Leases")
            assert message.body == b"a"
            assert answer.fields["startOffsetInfo"] == "1 0 0"


async def test_leases_and_acks_survive_a_restart(tmp_path: Path, clock: MovableClock) -> None:
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        await send(client, b"acked", b"open", b"acked later")
        consumer = LeaseClient(client)
        leased = await pop_some(consumer)
        await consumer.ack(leased[0])
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await consumer.ack(leased[2])
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        assert bodies(await pop_some(consumer)) == [b"open"]
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        await settled(broker)  # what was handed out again is not once more
        assert await LeaseClient(client).pop(T) == []


async def test_acks_of_a_batch_from_before_a_restart_count_also_in_a_store_without_keys(
    tmp_path: Path, clock: MovableClock
) -> None:
    without_keys: dict[str, Any] = {"messageIndexEnable": "false", **QUICK}
    async with running(tmp_path, clock=clock, **without_keys) as broker, wire(broker) as client:
        await send(client, b"acked", b"open", b"acked, too")
        leased = await pop_some(LeaseClient(client))
    async with running(tmp_path, clock=clock, **without_keys) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        assert (await consumer.ack_batch([leased[0], leased[2]])).code == 0
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        assert bodies(await consumer.pop(T)) == [b"open"]


async def test_an_ack_that_comes_out_of_the_timer_before_its_checkpoint_counts(
    broker: Broker, client: Wire, clock: MovableClock
) -> None:
    """As after a restart, when the timer delivers first what it did not know of yet. This process knows nothing of the lease."""
    await send(client, b"acked", b"open")
    log = LeaseLog(broker.state.store, broker.configuration, broker.state.statistics, clock, bytes(8))
    long_ago_ms = clock.now_ms() - 60_000
    shared: dict[str, Any] = {
        "broker_name": "broker-a", "group": "LG", "topic": T, "queue_id": 0, "start_offset": 0, "pop_time_ms": long_ago_ms,
    }  # fmt: skip
    log.write_ack(Ack(offset=0, **shared), 3, long_ago_ms + LEASE_MS)
    log.write_checkpoint(Checkpoint(differences=[0, 1], count=2, invisible_ms=LEASE_MS, **shared), 3, 2)
    broker.state.groups.require("LG")
    broker.state.offsets.commit("LG", T, 0, 2)
    assert bodies(await pop_some(LeaseClient(client))) == [b"open"]
    assert broker.state.offsets.get("CID_RMQ_SYS_REVIVE_GROUP", log.topic, 3) == 1


@pytest.mark.parametrize(
    "next_offset", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "7"], ids=["no number", "too large", "forged"]
)
async def test_a_timer_message_that_looks_like_a_checkpoint_moves_nobody(tmp_path: Path, next_offset: str) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        forged = Checkpoint(group="G", invisible_ms=1, count=1, pop_time_ms=1, queue_id=0, start_offset=0, topic="T")
        looks: dict[str, Any] = {keys.TAGS: CHECKPOINT_TAG, NEXT_OFFSET: next_offset, keys.TIMER_DELAY_SECONDS: "1000"}
        assert (await client.send("T", msgspec.json.encode(forged), **looks)).code == 0
        state = broker.state
        state.store.dispatch()
        state.offsets.saved_log_end = 0
        restore_positions(state.store, state.lease_log, state.offsets, 1)
        assert state.offsets.get("G", "T", 0) is None


async def test_fewer_revive_queues_lose_no_lease_and_no_ack(tmp_path: Path, clock: MovableClock) -> None:
    async with running(tmp_path, clock=clock, **QUICK, reviveQueueNum="9") as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await send(client, *(b"%d" % number for number in range(9)))
        leased = [(await pop_some(consumer, maxMsgNums=1))[0] for _ in range(9)]
        assert {each.handle.revive_queue for each in leased} == set(range(9))
    async with running(tmp_path, clock=clock, **QUICK, reviveQueueNum="1") as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        assert (await consumer.ack(leased[7])).code == 0
        assert (await consumer.extend(leased[8], LEASE_MS)).code == 0
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        came_back = await consumer.pop(T)
        assert sorted(bodies(came_back)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"8"]
        assert {each.handle.revive_queue for each in came_back} == {0}


async def test_fewer_revive_queues_lose_no_lease_after_a_kill_either(tmp_path: Path, clock: MovableClock) -> None:
    async with running(tmp_path / "store", clock=clock, **QUICK, reviveQueueNum="1") as broker, wire(broker) as client:
        await send(client, *(b"%d" % number for number in range(9)))
    async with running(tmp_path / "store", clock=clock, **QUICK, reviveQueueNum="9") as broker, wire(broker) as client:
        for _ in range(9):
            await pop_some(LeaseClient(client), maxMsgNums=1)
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    async with running(tmp_path / "killed", clock=clock, **QUICK, reviveQueueNum="1") as broker, wire(broker) as client:
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        assert sorted(bodies(await LeaseClient(client).pop(T))) == [b"%d" % number for number in range(9)]


async def test_of_an_extension_that_is_stored_by_half_nothing_comes_back_once_its_message_is_acknowledged(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, b"a")
    (leased,) = await pop_some(consumer)

    def full(*_: object) -> int:
        raise StoreFull("no room for a second record", code=ResponseCode.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as patch:
        patch.setattr(broker.state.lease_log, "write_ack", full)
        assert (await consumer.extend(leased, LEASE_MS)).code == 14
    assert (await consumer.ack(leased)).code == 0
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 0
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await settled(broker)
    assert await consumer.pop(T) == []


async def test_leases_outlive_a_new_name_of_their_broker(tmp_path: Path, clock: MovableClock) -> None:
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        await send(client, b"acked", b"open")
        consumer = LeaseClient(client)
        leased = await pop_some(consumer)
        assert (await consumer.ack(leased[0])).code == 0
        assert (await consumer.extend(leased[1], LEASE_MS)).code == 0
    async with running(tmp_path, clock=clock, **QUICK, brokerName="renamed") as broker, wire(broker) as client:
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        assert bodies(await LeaseClient(client, broker_name="renamed").pop(T)) == [b"open"]


async def test_a_lease_that_another_broker_gave_is_not_taken_for_its_own(
    broker: Broker, client: Wire, clock: MovableClock
) -> None:
    """As in a store of Apache's, whose brokers keep leases for each other."""
    await send(client, b"never leased")
    state = broker.state
    log = LeaseLog(state.store, broker.configuration, state.statistics, clock, bytes(8))
    state.groups.require("LG")
    state.offsets.commit("LG", T, 0, 1)
    others = Checkpoint(
        broker_name="broker-b", group="LG", topic=T, queue_id=0, start_offset=0, pop_time_ms=clock.now_ms() - 60_000,
        invisible_ms=LEASE_MS, count=1,
    )  # fmt: skip
    log.write_checkpoint(others, 3)
    await settled(broker)
    assert await LeaseClient(client).pop(T) == []


async def test_leases_of_what_is_gone_are_dropped(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"a")
    await pop_some(consumer)
    assert (await client.ask(215, {"topic": T})).code == 0
    assert len(broker.state.open_leases) == 0
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await settled(broker)
    assert broker.state.topics.get("%RETRY%LG_Leases") is None


async def test_a_lease_of_a_deleted_topic_gives_out_nothing_of_one_that_was_made_again(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    await send(client, b"old", b"old")
    await pop_some(consumer)
    clock.advance(ms=1)
    assert (await client.ask(215, {"topic": T})).code == 0
    await send(client, b"settled", b"open")
    settled_one, _ = await pop_some(consumer)
    assert (await consumer.ack(settled_one)).code == 0
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await settled(broker)
    assert bodies(await consumer.pop(T)) == [b"open"]
    assert await consumer.pop(T) == []


async def test_a_lease_of_a_topic_that_was_made_again_comes_back_though_the_clock_was_set_back(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    clock.advance(seconds=600)
    await send(client, b"old")
    assert (await client.ask(215, {"topic": T})).code == 0
    await send(client, b"m")
    clock.ahead_ms -= 600_000
    assert bodies(await pop_some(consumer)) == [b"m"]
    clock.advance(seconds=600 + SURELY_BACK_SECONDS)  # until then, the timer waits where it was
    assert bodies(await pop_some(consumer)) == [b"m"]


async def test_what_was_acknowledged_before_a_restart_is_not_extended_after_it(
    tmp_path: Path, clock: MovableClock
) -> None:
    async with running(tmp_path / "store", clock=clock) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await send(client, b"alone", b"with", b"others", b"open")
        alone, *batch, still_open = await pop_some(consumer)
        assert (await consumer.ack(alone)).code == 0
        await consumer.ack_batch(batch)
    async with running(tmp_path / "store", clock=clock) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        for leased in (alone, *batch):
            assert (await consumer.extend(leased, LEASE_MS)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await consumer.extend(still_open, LEASE_MS)).code == 0
        assert (await consumer.extend(still_open, LEASE_MS)).code == ResponseCode.MESSAGE_ILLEGAL
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        assert bodies(await pop_some(consumer)) == [b"open"]


@pytest.mark.parametrize("saved", [True, False], ids=["positions saved before", "positions only in the log"])
async def test_after_a_kill_a_topic_that_was_made_again_is_read_from_its_beginning(tmp_path: Path, saved: bool) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        await send(client, b"old", b"old")
        await broker.state.offsets.save()
        await pop_some(LeaseClient(client))
        if saved:
            await broker.state.offsets.save()
        assert (await client.ask(215, {"topic": T})).code == 0
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    async with running(tmp_path / "killed") as broker, wire(broker) as client:
        await send(client, b"1", b"2", b"3")
        assert bodies(await LeaseClient(client).pop(T)) == [b"1", b"2", b"3"]


async def test_a_message_that_claims_the_most_attempts_comes_back(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    broker.state.groups.require("LG").retry_max_times = -1
    await client.send(T, b"a", 0, header={**ONE_QUEUE, "reconsume_times": 2**31 - 1})
    await pop_some(consumer)
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    (again,) = await pop_some(consumer)
    assert (again.body, again.message.reconsume_times) == (b"a", 2**31 - 1)


LONG_TOPIC, LONG_GROUP = "%DLQ%" + "t" * 250, "g" * 120


async def test_what_could_not_come_back_is_not_leased(broker: Broker, client: Wire) -> None:
    assert (await client.send(LONG_TOPIC, b"a", 0, header=ONE_QUEUE)).code == 0
    refused = await LeaseClient(client, LONG_GROUP).ask_pop(LONG_TOPIC, invisibleTime=LEASE_MS)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "retry topic" in str(refused.remark)
    assert len(broker.state.open_leases) == 0
    longest = "t" * 127
    assert (await client.send(longest, b"b", 0, header=ONE_QUEUE)).code == 0
    assert (await LeaseClient(client, LONG_GROUP).ask_pop(longest)).code == 0


async def test_a_lease_of_what_cannot_come_back_is_given_up_and_stops_nobody(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such leases were taken before that was checked."""
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        with monkeypatch.context() as patch:
            patch.setattr(names, "can_be_leased", lambda group, topic: True)
            await client.send(LONG_TOPIC, b"a", 0, header=ONE_QUEUE)
            assert len(await LeaseClient(client, LONG_GROUP).pop(LONG_TOPIC, invisibleTime=LEASE_MS)) == 1
        await send(client, b"b")
        await pop_some(LeaseClient(client))
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        await settled(broker)
        assert bodies(await pop_some(LeaseClient(client))) == [b"b"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(broker.state.open_leases) > 1:
                await asyncio.sleep(0.02)
        assert "gave up message 0" in caplog.text
        assert not [topic for topic in broker.state.topics.all() if len(topic) > 255]
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        assert (await client.send("Other", b"c")).code == 0
        assert await client.bodies("Other") == [b"c"]


async def test_prometheus_sees_leases(tmp_path: Path, clock: MovableClock) -> None:
    exported: dict[str, Any] = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": 0,
        "metricsPromExporterHost": "127.0.0.1",
    }
    async with running(tmp_path, clock=clock, **QUICK, **exported) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await send(client, b"a", b"b", b"c")
        leased = await pop_some(consumer, maxMsgNums=2)
        await consumer.ack(leased[0])
        assert (await metric(broker, "rocketmq_consumer_inflight_messages", topic=T)) == 1
        assert (await metric(broker, "rocketmq_consumer_lag_messages", topic=T)) == 2
        assert (await metric(broker, "rocketmq_consumer_ready_messages", topic=T)) == 1
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        while not (await metric(broker, "rocketmq_pop_revive_retry_messages_total", topic=T)):
            await asyncio.sleep(0.05)
        for kind in ("CK", "ACK"):
            wanted = {"topic": T, "consumer_group": "LG", "revive_message_type": kind}
            assert (await metric(broker, "rocketmq_pop_revive_in_message_total", **wanted)) == 1
            assert (await metric(broker, "rocketmq_pop_revive_out_message_total", **wanted)) >= 1
        assert (await metric(broker, "rocketmq_consumer_inflight_messages", topic=T)) == 0


async def metric(broker: Broker, name: str, **labels: str) -> float:
    """The sum over what has these labels."""
    assert broker.metrics_address is not None
    page = await asyncio.to_thread(urllib.request.urlopen, f"http://{broker.metrics_address}/metrics")
    lines = [line for line in page.read().decode().splitlines() if line.startswith(name + "{")]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(each in line for each in wanted))


async def test_a_saved_position_behind_the_end_of_a_revive_queue_loses_no_lease(
    tmp_path: Path, clock: MovableClock
) -> None:
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        await send(client, b"a")
        for queue in broker.state.reviving.queues:
            broker.state.offsets.commit(GROUP, names.revive_topic("DefaultCluster"), queue.queue_id, 2**62)
    async with running(tmp_path, clock=clock, **QUICK) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        assert bodies(await pop_some(consumer)) == [b"a"]

        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)

        assert bodies(await pop_some(consumer)) == [b"a"]
