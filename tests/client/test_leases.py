"""Lease consumers on a server in this process."""

import asyncio
import dataclasses
import logging
from collections import Counter
from datetime import timedelta
from typing import Any, Literal

import pytest

from orbitmq import Client, ConsumeHook, Consuming, LeaseConsumer, LeasedMessage, Tracer, connect, fastjson, sync
from orbitmq.admin.session import open_session
from orbitmq.admin.traces import trace_events
from orbitmq.client.filters import subscription
from orbitmq.client.leasing import Leasing
from orbitmq.errors import AlreadyClosed, ConfigError, ConnectFailed, HeaderError, MessageError, RequestFailed
from orbitmq.message import StoredMessage
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, ok, request
from orbitmq.protocol.headers.groups import ConsumerRunningInfo
from orbitmq.protocol.headers.leases import PopResult
from orbitmq.protocol.lease_texts import Handle
from orbitmq.testing.server import Server
from orbitmq.transport.address import Address, parse_address
from tests.broker.kit import SEND_BATCH, Wire, send_header
from tests.client.scripted import eventually, scripted_cluster


def on_the_clock_of(server: Server) -> Client:
    """Leases are measured by both sides' clocks: one that is advanced must be everybody's."""
    return Client(dataclasses.replace(connect(server.address).config, clock=server.clock))


async def put(client: Client, topic: str, bodies: list[str], tag: str = "") -> None:
    async with client.producer("P") as producer:
        for body in bodies:
            await producer.send(topic, body, tag=tag, order_key="one queue")


class _Watching(ConsumeHook):
    def __init__(self) -> None:
        self.began: list[tuple[str, str, bytes]] = []
        self.ended: list[tuple[bytes, str]] = []

    def before_consume(self, consuming: Consuming) -> None:
        (message,) = consuming.messages
        self.began.append((consuming.group, message.topic, message.body))

    def after_consume(self, consuming: Consuming) -> None:
        (message,) = consuming.messages
        self.ended.append((message.body, type(consuming.error).__name__))


@pytest.mark.parametrize("face", ["async", "blocking"])
async def test_hooks_see_a_leased_message_from_when_it_is_handed_out_until_it_is_settled(
    mq_session_server: Server, face: str
) -> None:
    topic, hook = f"Watched{face}", _Watching()

    def blocking() -> None:
        with (
            sync.connect(mq_session_server.address) as client,
            client.lease_consumer(topic, group="watched", start="earliest", prefetch=1, hooks=[hook]) as consumer,
        ):
            for number, message in enumerate(consumer):
                with message.process():
                    if number == 1:
                        raise ZeroDivisionError
                if number == 2:
                    break
            consumer.ack(consumer.fetch(max=1))

    async with connect(mq_session_server.address) as client:
        await put(client, topic, ["0", "1", "2", "3"])
        if face == "blocking":
            await asyncio.to_thread(blocking)
        else:
            async with client.lease_consumer(topic, group="watched", start="earliest", hooks=[hook]) as consumer:
                first, second, third, fourth = await consumer.fetch(max=4)
                assert hook.ended == []
                async with first.process():
                    pass
                async with second.process():
                    raise ZeroDivisionError
                await third.extend(timedelta(minutes=2))
                await third.ack()
                await consumer.ack([fourth])
    assert hook.began == [("watched", topic, b"%d" % number) for number in range(4)]
    errors = ["NoneType", "ZeroDivisionError", "NoneType", "NoneType"]
    assert hook.ended == [(b"%d" % number, error) for number, error in enumerate(errors)]


async def test_a_tracer_tells_what_was_leased_and_how_it_ended(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client:
        await put(client, "TracedLeases", ["good", "bad"])
        async with (
            Tracer(client, topic="TracesOfLeases") as tracer,
            client.lease_consumer("TracedLeases", group="traced", start="earliest", hooks=[tracer]) as consumer,
        ):
            good, bad = await consumer.fetch(max=2)
            await good.ack()
            async with bad.process():
                raise ZeroDivisionError
    async with open_session(mq_session_server.address) as session:
        for message, outcome in ((good, "success"), (bad, "exception")):
            (event,) = await trace_events(session, message.message_id, "TracesOfLeases")
            assert (event.kind, event.group, event.attempt, event.outcome) == ("consumed", "traced", 1, outcome)


async def test_many_members_share_one_queue_and_each_message_goes_to_one(mq_session_server: Server) -> None:
    seen: Counter[bytes] = Counter()
    by_member: Counter[int] = Counter()

    async def member(client: Client, number: int) -> None:
        async with client.lease_consumer("Shared", group="sharers", start="earliest", prefetch=1) as consumer:
            async for message in consumer:
                async with message.process():
                    seen[message.body] += 1
                    by_member[number] += 1
                    await asyncio.sleep(0.001)

    async with connect(mq_session_server.address) as client:
        await put(client, "Shared", [str(number) for number in range(60)])
        members = [asyncio.create_task(member(client, number)) for number in range(3)]
        async with asyncio.timeout(30):
            while seen.total() < 60:
                await asyncio.sleep(0.01)
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    assert set(seen.values()) == {1}
    assert len(by_member) == 3


async def test_a_block_that_raises_lets_the_message_come_again(
    mq_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_the_clock_of(mq_server) as client:
        await put(client, "Failing", ["x"])
        lease = timedelta(seconds=2)
        async with client.lease_consumer("Failing", group="g", start="earliest", lease=lease) as consumer:
            message = await anext(consumer)
            async with message.process():
                raise ZeroDivisionError
            assert "comes again when its lease ends" in caplog.text
            async with asyncio.timeout(30):
                while not (again := await consumer.fetch(wait=0.1)):
                    mq_server.clock.advance(seconds=1)
            assert [(one.body, one.attempt) for one in again] == [(b"x", 2)]
            async with again[0].process():
                pass
            assert consumer.stats.acked == 1


async def test_what_nobody_fetched_is_given_back_on_closing(
    mq_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orbitmq.client")
    async with on_the_clock_of(mq_server) as client:
        await put(client, "Prefetched", ["a", "b", "c"])
        lease = timedelta(days=1)
        async with client.lease_consumer(
            "Prefetched", group="g", start="earliest", lease=lease, prefetch=3
        ) as consumer:
            first = await anext(consumer)
            await first.ack()
        async with client.lease_consumer("Prefetched", group="g") as consumer:
            found: set[bytes] = set()
            async with asyncio.timeout(30):
                while len(found) < 2:
                    found |= {message.body for message in await consumer.fetch(wait=0.1)}
                    mq_server.clock.advance(seconds=1)
    assert found == {b"a", b"b", b"c"} - {first.body}


async def test_brokers_that_are_away_for_a_while_do_not_end_an_iteration(
    mq_session_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pop, away = Leasing.pop, ConnectFailed("no connection", hint="is it running?")
    failures = 2

    async def fails_at_first(self: Leasing, *args: Any) -> list[tuple[StoredMessage, Handle]]:
        nonlocal failures
        if failures:
            failures -= 1
            raise away
        return await pop(self, *args)

    async with connect(mq_session_server.address) as client:
        await put(client, "Flapping", ["a"])
        async with client.lease_consumer("Flapping", group="flapping", start="earliest") as consumer:
            monkeypatch.setattr(Leasing, "pop", fails_at_first)
            with pytest.raises(ConnectFailed):  # a cluster that cannot be reached at all shows at once
                await anext(consumer)
            async with asyncio.timeout(60):
                while not (first := await _fetched(consumer)):
                    await asyncio.sleep(0.01)
                await first[0].ack()
                failures = 2
                await put(client, "Flapping", ["b"])
                second = await anext(consumer)
                await second.ack()
            assert (first[0].body, second.body, failures) == (b"a", b"b", 0)
    assert "leasing from Flapping fails" in caplog.text


async def _fetched(consumer: LeaseConsumer) -> list[LeasedMessage]:
    try:
        return await consumer.fetch(max=1, wait=0.1)
    except ConnectFailed:
        return []


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_topic_that_does_not_exist_yet_is_waited_for(
    mq_session_server: Server, caplog: pytest.LogCaptureFixture, start: Literal["earliest", "latest"]
) -> None:
    topic = f"LeasedLater{start}"
    async with (
        connect(mq_session_server.address) as client,
        client.lease_consumer(topic, group="g", start=start) as consumer,
    ):
        assert await consumer.fetch(wait=0) == []
        assert await consumer.fetch(wait=0.01) == []
        first = asyncio.create_task(anext(consumer))
        await eventually(lambda: "does not exist yet" in caplog.text)
        await put(client, topic, ["a"])
        async with asyncio.timeout(30):
            message = await first
        assert message.body == b"a"
        await message.ack()
    assert caplog.text.count(f"topic {topic} does not exist yet: group g waits for it") == 1


async def test_closing_ends_an_iteration_that_waits_for_its_topic(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client:
        consumer = await client.lease_consumer("LeasedNever", group="g").start()
        iterating = asyncio.create_task(_all(consumer))
        await eventually(lambda: consumer._missed)
        await consumer.close()
        async with asyncio.timeout(10):
            assert await iterating == []


async def test_name_servers_that_are_away_end_no_waiting_for_a_topic_though_none_at_all_shows_at_once() -> None:
    async with scripted_cluster() as cluster, connect(cluster.address) as client:
        port = cluster.name_server.port
        await cluster.stop("name server")
        async with client.lease_consumer("Later", group="g") as consumer:
            with pytest.raises(ConnectFailed):
                await consumer.fetch(wait=0)
            await cluster.start_name_server(port)
            async with asyncio.timeout(30):
                while not consumer._missed:
                    await _fetched(consumer)
            iterating = asyncio.create_task(_all(consumer))
            await eventually(lambda: consumer._missed > 2)
            await cluster.stop("name server")
            assert await consumer.fetch(wait=0) == []
        assert await iterating == []


async def _all(consumer: LeaseConsumer) -> list[LeasedMessage]:
    return [one async for one in consumer]


async def test_what_nobody_fetched_is_given_back_all_at_once(
    mq_session_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, begun, both = Leasing.change, 0, asyncio.Event()

    async def together(self: Leasing, handle: Handle, lease_ms: int) -> Handle:
        nonlocal begun
        begun += 1
        if begun == 2:
            both.set()
        await both.wait()
        return await change(self, handle, lease_ms)

    async with connect(mq_session_server.address) as client:
        await put(client, "Returned", ["a", "b", "c"])
        async with client.lease_consumer("Returned", group="returning", start="earliest", prefetch=3) as consumer:
            await (await anext(consumer)).ack()
            assert len(consumer._here) == 2
            monkeypatch.setattr(Leasing, "change", together)
            async with asyncio.timeout(60):
                await consumer.close()


async def test_texts_of_a_pop_that_make_no_sense_are_the_brokers_mistake() -> None:
    class Broker:
        config = connect("127.0.0.1:1").config

        def master(self, name: str) -> Address:
            return Address("127.0.0.1", 1)

        async def call(self, address: Address, command: Command, seconds: float) -> Command:
            return answer(ResponseCode.SUCCESS, header=PopResult(start_offset_info="0 0 nonsense"))

    leasing = Leasing(Broker(), "g", subscription("T", None, 1), init_mode=0, orderly=False)  # type: ignore[arg-type]
    with pytest.raises(HeaderError, match=r"'broker-a' says of the messages it leased cannot be read: .*nonsense"):
        await leasing.pop("broker-a", 1, 1000, 0.0, "attempt")


async def test_a_broker_that_takes_no_acks_keeps_back_none_of_others(mq_session_server: Server) -> None:
    class TwoBrokers:
        def __init__(self) -> None:
            self.taken: list[str] = []

        def master(self, name: str) -> Address:
            return Address(name, 1)

        async def ask(self, address: Address, command: Command, seconds: float) -> Command:
            if address.host == "refusing":
                raise RequestFailed(ResponseCode.SYSTEM_BUSY, "busy", hint="wait")
            self.taken.append(address.host)
            return ok()

    async with connect(mq_session_server.address) as client:
        await put(client, "TwoBrokers", ["a", "b"])
        async with client.lease_consumer("TwoBrokers", group="two", start="earliest") as consumer:
            leased: list[LeasedMessage] = []
            async with asyncio.timeout(30):
                while len(leased) < 2:
                    leased += await consumer.fetch()
            for message, name in zip(leased, ("refusing", "willing"), strict=True):
                message._lease.handle = message.handle._replace(broker_name=name)
            brokers = TwoBrokers()
            assert consumer._leasing is not None
            consumer._leasing._cluster = brokers  # type: ignore[assignment]
            with pytest.raises(RequestFailed, match="busy"):
                await consumer.ack(leased)
            assert brokers.taken == ["willing"]
            assert consumer.stats.acked == 1


async def test_a_broker_that_fails_while_others_work_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    behind = {"broker-a"}

    async def pop(self: Leasing, broker_name: str, *args: Any) -> list[tuple[StoredMessage, Handle]]:
        if broker_name in behind:
            raise RequestFailed(ResponseCode.POLLING_TIMEOUT, "the clock here is behind", hint="set the clocks")
        return []

    monkeypatch.setattr(Leasing, "pop", pop)
    caplog.set_level(logging.INFO)
    async with (
        scripted_cluster(brokers=2) as cluster,
        connect(cluster.address) as client,
        client.lease_consumer("T", group="G") as consumer,
    ):
        for _ in range(2):
            assert await consumer.fetch(wait=0) == []
        behind.clear()
        assert await consumer.fetch(wait=0) == []
    told = [record.message for record in caplog.records if record.name == "orbitmq.client.lease_consumer"]
    assert told == [
        "leasing T from broker-a fails: the clock here is behind (set the clocks)",
        "leasing T from broker-a works again",
    ]


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_a_block_whose_ack_does_not_arrive_lets_the_message_come_again(
    mq_session_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, face: str
) -> None:
    """What iterates goes on, as after a block that raises."""

    async def fails(self: Leasing, handle: Handle) -> None:
        raise ConnectFailed("no connection", hint="is it running?")

    def handle_one() -> None:
        with (
            sync.connect(mq_session_server.address) as client,
            client.lease_consumer(topic, group="unheard", start="earliest") as consumer,
            next(iter(consumer)).process(),
        ):
            pass

    topic = f"Unheard_{face}"
    monkeypatch.setattr(Leasing, "ack", fails)
    async with connect(mq_session_server.address) as client:
        await put(client, topic, ["x"])
        if face == "blocking":
            await asyncio.to_thread(handle_one)
        else:
            async with client.lease_consumer(topic, group="unheard", start="earliest") as consumer:
                async with (await anext(consumer)).process():
                    pass
                assert consumer.stats.acked == 0
    assert "comes again when its lease ends" in caplog.text


async def test_one_whose_closing_was_cancelled_leaves_all_the_same(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client:
        consumer = await client.lease_consumer("Shared", group="leavers").start()
        instance = consumer._instance
        assert instance is not None
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert instance.users == 0


async def test_an_orderly_queue_waits_for_the_acks_of_what_it_handed_out(mq_server: Server) -> None:
    async with on_the_clock_of(mq_server) as client:
        await put(client, "Ordered", [str(number) for number in range(6)])
        lease = timedelta(seconds=2)
        async with (
            client.lease_consumer("Ordered", group="g", start="earliest", lease=lease, orderly=True) as one,
            client.lease_consumer("Ordered", group="g", start="earliest", lease=lease, orderly=True) as other,
        ):
            first = await one.fetch(max=2, wait=5)
            assert [(message.body, message.attempt) for message in first] == [(b"0", 1), (b"1", 1)]
            assert await other.fetch(max=2, wait=0) == []  # nobody gets what comes behind them
            await first[0].ack()
            async with asyncio.timeout(30):
                while not (again := await other.fetch(max=2, wait=0.1)):
                    mq_server.clock.advance(seconds=1)
            assert (again[0].body, again[0].attempt) == (b"1", 2)
            await other.ack(again)
            bodies = [message.body for message in again]
            async with asyncio.timeout(30):
                while len(bodies) < 5:
                    found = await one.fetch(max=2, wait=1)
                    bodies += [message.body for message in found]
                    if found:
                        await one.ack(found)
    assert bodies == [b"1", b"2", b"3", b"4", b"5"]


async def put_inner_batch(server: Server, topic: str) -> None:
    """A batch that its topic keeps as one record, as Apache's 5.x client sends it: `m0`, `m1`, `m2`."""
    client = Wire(parse_address(server.broker_address))
    header = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    members = [BatchMember(b"m%d" % number, encode_properties({"UNIQ_KEY": f"u{number}"})) for number in range(3)]
    outer = send_header(topic, 0, {"UNIQ_KEY": "outer"}, {"batch": True})
    assert (await client.ask(SEND_BATCH, outer, encode_batch(members))).code == 0
    await client.close()


async def test_a_batch_in_one_record_is_leased_message_by_message_and_acked_with_the_last(mq_server: Server) -> None:
    await put_inner_batch(mq_server, "Whole")
    lease = timedelta(seconds=5)
    async with (
        on_the_clock_of(mq_server) as client,
        client.lease_consumer("Whole", group="g", start="earliest", lease=lease) as consumer,
    ):
        first, *rest = await consumer.fetch(wait=5)
        assert [message.body for message in (first, *rest)] == [b"m0", b"m1", b"m2"]
        await asyncio.gather(*(message.extend(lease * 2) for message in rest))
        assert first.handle == rest[0].handle
        await first.ack()
        await first.ack()
        await consumer.ack([rest[1]])
        assert consumer.stats.acked == 2
        again = await come_again(consumer, mq_server)
        assert [(message.body, message.attempt) for message in again] == [(b"m0", 2), (b"m1", 2), (b"m2", 2)]
        await consumer.ack(again[:1])
        await consumer.ack(again[1:])
        assert consumer.stats.acked == 5
        mq_server.clock.advance(seconds=60)
        assert await consumer.fetch(wait=0.5) == []


async def come_again(consumer: LeaseConsumer, server: Server) -> list[LeasedMessage]:
    async with asyncio.timeout(30):
        while not (again := await consumer.fetch(wait=0.1)):
            server.clock.advance(seconds=1)
    return again


async def test_filters_hold_though_brokers_compare_hashes_only(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client:
        await put(client, "Filtered", ["old"], tag="Aa")
        await put(client, "Filtered", ["same hash"], tag="BB")
        async with client.lease_consumer("Filtered", group="tagged", filter="Aa", start="earliest") as consumer:
            assert [message.body for message in await consumer.fetch(wait=5)] == [b"old"]
            assert await consumer.fetch(wait=0) == []
            assert consumer.stats.pulls == 2


async def test_mistakes_are_named(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client:
        with pytest.raises(ConfigError, match="a second to three days"):
            client.lease_consumer("T", group="g", lease=timedelta(0))
        with pytest.raises(ConfigError, match="unknown"):
            client.lease_consumer("T", group="g", start="middle")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a lease of 5 cannot be had"):
            client.lease_consumer("T", group="g", lease=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="prefetch is 0"):
            client.lease_consumer("T", group="g", prefetch=0)
        with pytest.raises(MessageError, match="not a valid name"):
            client.lease_consumer(["T"], group="g")  # type: ignore[arg-type]
        await put(client, "Mistaken", ["x"])
        async with client.lease_consumer("Mistaken", group="g", start="earliest") as consumer:
            with pytest.raises(ConfigError, match="max is 0"):
                await consumer.fetch(max=0)
            [message] = await consumer.fetch(wait=5)
            with pytest.raises(ConfigError, match="a lease of 5 cannot be had"):
                await message.extend(5)  # type: ignore[arg-type]
            message._lease.handle = message.handle._replace(offset=77)
            with pytest.raises(RequestFailed):
                await message.ack()
        with pytest.raises(AlreadyClosed):
            await consumer.fetch()
        assert [one async for one in consumer] == []


async def test_a_clock_behind_the_brokers_is_named(mq_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with on_the_clock_of(mq_server) as client:
        await put(client, "Behind", ["x"])
        async with client.lease_consumer("Behind", group="g", start="earliest") as consumer:
            assert await consumer.fetch(wait=0) != []
            assert await consumer.fetch(wait=0.1) == await consumer.fetch(wait=0) == []
    mq_server.clock.advance(seconds=100)
    async with (
        connect(mq_server.address) as client,
        client.lease_consumer("Behind", group="g", start="earliest") as consumer,
    ):
        for wait in (0, 2):
            with pytest.raises(RequestFailed, match="behind the broker's") as caught:
                await consumer.fetch(wait=wait)
            assert caught.value.code == ResponseCode.POLLING_TIMEOUT
        with pytest.raises(RequestFailed, match="behind the broker's"):
            await anext(consumer)


def test_leasing_without_asyncio(mq_session_server: Server) -> None:
    with sync.connect(mq_session_server.address) as client:
        with client.producer("P") as producer:
            for number in range(4):
                producer.send("BlockingLeases", str(number), order_key="k")
        with client.lease_consumer("BlockingLeases", group="g", start="earliest") as consumer:
            one, other = consumer.fetch(max=2, wait=5)
            one.extend(timedelta(minutes=5))
            one.ack()
            consumer.ack([other])
            bodies = []
            for message in consumer:
                with message.process():
                    bodies.append(message.body)
                if len(bodies) == 2:
                    break
            assert sorted([one.body, other.body, *bodies]) == [b"0", b"1", b"2", b"3"]
            assert consumer.stats.acked == 4


async def test_a_tool_can_ask_how_a_member_that_leases_does(mq_server: Server) -> None:
    async with on_the_clock_of(mq_server) as client, client.pull_consumer("Tool") as tool:
        await put(client, "Asked", ["a", "b", "c"])
        [queue] = [queue for queue in await tool.queues("Asked") if await tool.max_offset(queue)]
        async with client.lease_consumer("Asked", group="g", start="earliest", lease=timedelta(hours=1)) as consumer:
            leased = await consumer.fetch(max=3, wait=30)
            await leased[0].ack()
            assert consumer._instance is not None
            cluster = consumer._instance.cluster
            address = cluster.master(queue.broker_name)
            assert address is not None
            header = ConsumerRunningInfo(consumer_group="g", client_id=consumer._instance.client_id, jstack_enable=True)
            answer = await cluster.ask(address, request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), 30)
            info = fastjson.loads(answer.body)
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_POP"
    assert info["properties"]["popInvisibleTime"] == "3600000"
    assert [one["topic"] for one in info["subscriptionSet"]] == ["Asked"]
    [of_broker] = info["mqPopTable"].values()
    assert (of_broker["waitAckCount"], of_broker["droped"]) == (len(leased) - 1, False)
    assert of_broker["lastPopTimestamp"] > 0
    assert info["statusTable"]["Asked"]["pullTPS"] > 0
    assert info["mqTable"] == {}
    assert "figures of g" in info["jstack"]
