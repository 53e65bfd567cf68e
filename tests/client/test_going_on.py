"""What fails, or is cancelled, ends nothing but itself: clients go on with their own work."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orbitmq import Client, QueueRef, ReceivedMessage, connect
from orbitmq.client import instance as instances
from orbitmq.client.consumer import Consumer
from orbitmq.client.hooks import ConsumeHook, Consuming
from orbitmq.client.membership import Membership
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.message.record import encode_stored
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.transactions import CheckTransactionState
from orbitmq.transport.address import Address
from orbitmq.transport.connection import Connection
from orbitmq.transport.network import TcpNetwork
from tests.client.scripted import ScriptedCluster, eventually, never_answer, refuse, scripted_cluster
from tests.raw_client import PATIENCE_SECONDS


def client_of(cluster: ScriptedCluster, **changes: object) -> Client:
    return Client(dataclasses.replace(connect(cluster.address).config, **changes))  # type: ignore[arg-type]


async def awaits_what_was_cancelled() -> None:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


async def owns(consumer: Consumer, queues: int) -> Membership:
    """Wait until so many queues are its own, those of the retry topic among them."""
    member = consumer._member
    assert member is not None
    await eventually(lambda: len(member.queues) == queues, PATIENCE_SECONDS)
    return member


async def rebalanced(consumer: Consumer) -> None:
    before = consumer.stats.rebalances
    assert consumer._member is not None
    consumer._member.rebalance_soon()
    await eventually(lambda: consumer.stats.rebalances > before, PATIENCE_SECONDS)


class VanishingPackets(TcpNetwork):
    """Some hosts are gone without a word: whoever connects to them waits."""

    def __init__(self) -> None:
        self.gone: set[Address] = set()
        self.waiting = 0

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        if address in self.gone:
            self.waiting += 1
            await asyncio.Event().wait()
        await super().connect(protocol, address)


class ForgetfulFirewall:
    """Passes bytes on, until `forget`: then those of the connections that there are vanish, and nobody hears of it."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._flows: list[asyncio.Event] = []
        self._ways: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Address:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address(*self._server.sockets[0].getsockname()[:2])

    def forget(self) -> None:
        for forgotten in self._flows:
            forgotten.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forgotten = asyncio.Event()
        self._flows.append(forgotten)
        there = await asyncio.open_connection(self._target.host, self._target.port)
        for way in (self._pass_on(reader, there[1], forgotten), self._pass_on(there[0], writer, forgotten)):
            self._ways.add(asyncio.create_task(way))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forgotten: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not forgotten.is_set():
                    writer.write(data)
        finally:
            writer.transport.abort()


# ---- connections


async def test_a_broker_that_is_dropped_while_we_connect_to_it_cancels_nobody() -> None:
    """Its host is gone without a word, and the name server has noticed."""
    network = VanishingPackets()
    async with scripted_cluster(brokers=2, topics={"T": 1}) as cluster:
        here, gone = cluster.brokers
        async with (
            client_of(cluster, network=network, route_refresh_seconds=0.1, heartbeat_seconds=0.1) as client,
            client.producer("P") as producer,
        ):
            for _ in range(4):
                await producer.send("T", b"x")
            network.gone.add(gone.address)
            await cluster.stop("broker-b")
            to_gone = QueueRef("T", "broker-b", 0)
            sending = asyncio.create_task(producer.send("T", b"x", queue=to_gone, timeout=PATIENCE_SECONDS))
            beats = len(here.heartbeats)
            await eventually(lambda: network.waiting and len(here.heartbeats) > beats, PATIENCE_SECONDS)
            cluster.offline.add("broker-b")
            with pytest.raises(OrbitError):
                await sending
            beats = len(here.heartbeats)
            await eventually(lambda: len(here.heartbeats) > beats + 3, PATIENCE_SECONDS)


async def test_a_connection_that_a_firewall_forgot_is_replaced(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.transport.connection._SILENT_SECONDS", 0.1)
    firewall = ForgetfulFirewall(cluster.broker.address)
    cluster.broker.address = await firewall.start()
    try:
        async with connect(cluster.address) as client, client.producer("P", timeout=0.5) as producer:
            await producer.send("T", b"before", timeout=PATIENCE_SECONDS)
            firewall.forget()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    try:
                        await producer.send("T", b"after")
                        break
                    except OrbitError:
                        continue
    finally:
        await firewall.close()


async def test_the_route_of_a_deleted_topic_leads_nobody_to_where_a_broker_was() -> None:
    async with (
        scripted_cluster(topics={"Living": 1, "Deleted": 1}) as cluster,
        client_of(cluster, route_refresh_seconds=0.02) as client,
        client.producer("P") as producer,
    ):
        await producer.send("Living", b"x")
        await producer.send("Deleted", b"x")
        del cluster.topics["Deleted"]
        await cluster.stop("broker-a")
        await cluster.start_broker(cluster.broker)  # at another address
        await producer.send("Living", b"x", timeout=PATIENCE_SECONDS)
        asked = cluster.route_requests
        await eventually(lambda: cluster.route_requests > asked + 6, PATIENCE_SECONDS)  # three rounds
        assert producer.cluster.brokers == {"broker-a": {0: cluster.broker.address}}


# ---- handlers


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_awaits_something_cancelled_ends_no_worker(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    done: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            await awaits_what_was_cancelled()
        done.append(message.body)

    bodies = [b"%d" % number for number in range(4)]
    for body in bodies:
        cluster.broker.put("T", 0, body)
    async with client.consumer(
        "T", group="G", start="earliest", handler=handler, concurrency=2, orderly=orderly, suspend=0.01
    ) as consumer:
        await eventually(lambda: sorted(done) == bodies, PATIENCE_SECONDS)
        await eventually(lambda: consumer.stats.acked == 4, PATIENCE_SECONDS)
    assert "waited for something that was cancelled" in caplog.text


async def test_a_hook_that_fails_ends_no_worker_and_is_reported_once(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ConsumeHook):
        def before_consume(self, consuming: Consuming) -> None:
            raise ZeroDivisionError

        def after_consume(self, consuming: Consuming) -> None:
            raise ZeroDivisionError

    async def handler(message: ReceivedMessage) -> None:
        pass

    for _ in range(5):
        cluster.broker.put("T", 0, b"x")
    async with client.consumer(
        "T", group="G", start="earliest", handler=handler, concurrency=2, hooks=[Failing()]
    ) as consumer:
        await eventually(lambda: consumer.stats.acked == 5, PATIENCE_SECONDS)
    assert caplog.text.count("are handled all the same") == 1


async def test_checks_that_await_something_cancelled_leave_brokers_answered(
    cluster: ScriptedCluster, client: Client
) -> None:
    async def check(message: ReceivedMessage) -> bool:
        if message.body == b"bad":
            await awaits_what_was_cancelled()
        return True

    async with client.transaction_producer("P", check=check, topics=["T"]):
        await eventually(lambda: "P" in cluster.broker.producers, PATIENCE_SECONDS)
        bodies = [b"bad"] * 6 + [b"good"]  # more than are checked at once
        for number, body in enumerate(bodies):
            half = cluster.broker.put("T", 0, body, PGROUP="P", UNIQ_KEY=f"id-{number}")
            question = CheckTransactionState(tran_state_table_offset=number, commit_log_offset=number, topic="HALF")
            command = request(RequestCode.CHECK_TRANSACTION_STATE, question, encode_stored(half))
            cluster.broker.producers["P"].notify(command)
        ends = RequestCode.END_TRANSACTION
        await eventually(lambda: len(cluster.broker.received(ends)) == len(bodies), PATIENCE_SECONDS)


# ---- rebalancing


async def test_unsubscribing_while_a_queue_is_taken_over_leaves_rebalancing_alive(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.topics["U"] = 1
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(command: Command, connection: Connection) -> Command:
        asked.set()
        await go_on.wait()
        return await cluster.broker._query_offset(command, connection)

    async with client.consumer("T", group="G", orderly=True) as first:
        await owns(first, 3)
        cluster.broker.inject(RequestCode.QUERY_CONSUMER_OFFSET, slowly)
        await first.subscribe("U")
        await asked.wait()
        await first.unsubscribe("U")
        go_on.set()
        await eventually(lambda: ("G", "U", 0) not in cluster.broker.locks, PATIENCE_SECONDS)
        async with client.consumer("T", group="G", orderly=True) as second:
            await eventually(lambda: len(first.assigned) == len(second.assigned) == 1, PATIENCE_SECONDS)


async def test_a_strategy_that_raises_is_asked_again(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.membership._UNBALANCED_SECONDS", 0.01)
    turns = 0

    def strategy(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
        nonlocal turns
        turns += 1
        if turns <= 2:
            raise ZeroDivisionError
        return list(queues)

    async with client.consumer("T", group="G", strategy=strategy) as consumer:
        await eventually(lambda: len(consumer.assigned) == 2, PATIENCE_SECONDS)
    assert "ZeroDivisionError" in caplog.text


async def test_a_broker_that_does_not_know_the_group_takes_no_queues_away() -> None:
    async with scripted_cluster(brokers=2, topics={"T": 2}) as cluster, connect(cluster.address) as client:
        ids = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        async with client.consumer("T", group="G") as consumer:
            await owns(consumer, 6)
            for broker in cluster.brokers:
                broker.inject(ids, refuse(ResponseCode.SYSTEM_ERROR, "no consumer for this group"), times=1000)
            for _ in range(3):
                await rebalanced(consumer)
                assert len(consumer.assigned) == 4


async def test_a_broker_that_may_not_tell_who_is_in_the_group_is_quoted(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "orbitmq.client")
    remark = "org.apache.rocketmq.acl.common.AclException: No default permission for G"
    cluster.broker.inject(RequestCode.GET_CONSUMER_LIST_BY_GROUP, refuse(ResponseCode.SYSTEM_ERROR, remark), times=1000)
    async with client.consumer("T", group="G"):
        await eventually(lambda: remark in caplog.text)


class OneByOne:
    """The handler of an orderly consumer, which keeps the first message of queue 0 until it is told to go on."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.entered, self.release = asyncio.Event(), asyncio.Event()
        self._running = 0

    async def __call__(self, message: ReceivedMessage) -> None:
        if message.queue.queue_id:
            return
        self._running += 1
        assert self._running == 1
        self.seen.append(message.body)
        self.entered.set()
        await self.release.wait()
        self._running -= 1


@pytest.mark.parametrize("failing", [False, True])
async def test_a_queue_whose_lock_somebody_else_had_is_read_afresh(
    cluster: ScriptedCluster, client: Client, failing: bool
) -> None:
    """The broker was restarted, and another member was quicker."""
    handler, key = OneByOne(), ("G", "T", 0)
    for number in range(5):
        cluster.broker.put("T", 0, b"%d" % number)

    async def handle(message: ReceivedMessage) -> None:
        is_stale = not handler.entered.is_set()
        await handler(message)
        if is_stale and failing:
            raise OrbitError("this message fails", hint="")

    options: dict[str, Any] = {"orderly": True, "start": "earliest", "commit_every": 0.01, "max_retries": 0}
    async with client.consumer("T", group="G", handler=handle, **options) as consumer:
        member = await owns(consumer, 3)
        await handler.entered.wait()
        cluster.broker.inject(RequestCode.LOCK_BATCH_MQ, refuse(ResponseCode.SYSTEM_ERROR))
        await member._renew_locks()
        assert len(member.queues) == 3  # nobody said that one is not ours
        cluster.broker.locks[key] = "somebody"
        await member._renew_locks()
        cluster.broker.offsets[key] = 3  # somebody has done so much
        handler.release.set()
        await asyncio.sleep(0.1)  # for commits
        assert (handler.seen, cluster.broker.offsets[key]) == ([b"0"], 3)
        del cluster.broker.locks[key]
        await eventually(lambda: cluster.broker.offsets[key] == 5, PATIENCE_SECONDS)
        assert consumer.stats.acked == 2
    assert handler.seen == [b"0", b"3", b"4"]
    assert cluster.broker.received(RequestCode.SEND_MESSAGE_V2) == []  # no dead letter of what is somebody else's


async def test_a_queue_taken_back_has_no_second_handler_beside_that_of_a_stale_message(
    cluster: ScriptedCluster, client: Client
) -> None:
    handler, key = OneByOne(), ("G", "T", 0)
    for number in range(2):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", orderly=True, handler=handler, start="earliest") as consumer:
        member = await owns(consumer, 3)
        await handler.entered.wait()
        cluster.broker.locks[key] = "somebody"
        await member._renew_locks()
        del cluster.broker.locks[key]
        await rebalanced(consumer)
        assert handler.seen == [b"0"]
        handler.release.set()
        await eventually(lambda: handler.seen == [b"0", b"0", b"1"], PATIENCE_SECONDS)


async def test_a_queue_that_is_lost_while_it_is_sought_keeps_the_offset_of_its_next_owner(
    cluster: ScriptedCluster, client: Client
) -> None:
    handler, key = OneByOne(), ("G", "T", 0)
    for number in range(5):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", orderly=True, handler=handler, start="earliest") as consumer:
        member = await owns(consumer, 3)
        await handler.entered.wait()
        seeking = asyncio.create_task(consumer.seek(QueueRef("T", "broker-a", 0), 1))
        await asyncio.sleep(0.01)
        cluster.broker.locks[key] = "somebody"
        await member._renew_locks()
        cluster.broker.offsets[key] = 3
        handler.release.set()
        with pytest.raises(ConfigError, match="not assigned"):
            await seeking
        await consumer._member.save_offsets()  # type: ignore[union-attr]
        assert cluster.broker.offsets[key] == 3


async def test_a_broker_that_is_back_is_asked_for_its_locks_at_once(cluster: ScriptedCluster, client: Client) -> None:
    """Locks are in its memory only, and another member may be quicker. Until we ask, both handle the queue."""
    broker, queue = cluster.broker, QueueRef("T", "broker-a", 0)
    async with client.consumer("T", group="G", orderly=True, handler=OneByOne(), start="earliest") as consumer:
        member = await owns(consumer, 3)
        port = broker.address.port
        await cluster.stop(broker.name)
        broker.locks = {("G", "T", 0): "somebody"}
        await cluster.start_broker(broker, port)
        await eventually(lambda: queue not in member.queues, 10)
        assert len(member.queues) == 2


def broker_forgot_the_lock(member: Membership) -> None:
    """As when it could not be reached for more than a minute."""
    held = member.queues[QueueRef("T", "broker-a", 0)]
    assert held.locked_at is not None
    held.locked_at -= 61


@pytest.mark.parametrize("somebody_was_there", [True, False])
async def test_a_queue_whose_lock_ran_out_goes_on_where_its_group_is(
    cluster: ScriptedCluster, client: Client, somebody_was_there: bool
) -> None:
    handler, key = OneByOne(), ("G", "T", 0)
    for number in range(5):
        cluster.broker.put("T", 0, b"%d" % number)
    options: dict[str, Any] = {"orderly": True, "start": "earliest", "commit_every": 0.01}
    async with client.consumer("T", group="G", handler=handler, **options) as consumer:
        member = await owns(consumer, 3)
        await handler.entered.wait()
        broker_forgot_the_lock(member)
        committed = cluster.broker.offsets[key] = 3 if somebody_was_there else 0
        handler.release.set()
        await asyncio.sleep(0.1)  # for commits
        assert (handler.seen, cluster.broker.offsets[key]) == ([b"0"], committed)
        await member._renew_locks()
        await eventually(lambda: cluster.broker.offsets[key] == 5, PATIENCE_SECONDS)
    assert handler.seen == ([b"0", b"3", b"4"] if somebody_was_there else [b"0", b"1", b"2", b"3", b"4"])


async def test_a_queue_whose_lock_ran_out_is_given_up_without_a_commit(
    cluster: ScriptedCluster, client: Client
) -> None:
    handler, key = OneByOne(), ("G", "T", 0)
    cluster.broker.put("T", 0, b"0")
    async with client.consumer("T", group="G", orderly=True, handler=handler, start="earliest") as consumer:
        member = await owns(consumer, 3)
        await handler.entered.wait()
        broker_forgot_the_lock(member)
        cluster.broker.offsets[key] = 3
        await consumer.unsubscribe("T")
        await rebalanced(consumer)
        handler.release.set()
        await eventually(lambda: key not in cluster.broker.locks, PATIENCE_SECONDS)
    assert cluster.broker.offsets[key] == 3


# ---- closing


async def test_a_consumer_whose_closing_was_cancelled_leaves_all_the_same(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.topics["U"] = 1
    started = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    cluster.broker.put("T", 0, b"x")
    async with client.consumer("U", group="Other") as other:
        consumer = await client.consumer("T", group="G", start="earliest", handler=handler, close_timeout=0.2).start()
        instance = consumer._instance  # which lives on, and its heartbeats with it
        assert instance is not None
        assert instance is other._instance
        await started.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert cluster.broker.members["G"] == {}
        assert list(instance.consumers) == ["Other"]
        assert instance.users == 1


async def test_a_handler_may_close_its_own_consumer(cluster: ScriptedCluster, client: Client) -> None:
    closed = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await consumer.close()
        closed.set()

    cluster.broker.put("T", 0, b"x")
    consumer = await client.consumer("T", group="G", start="earliest", handler=handler, close_timeout=3600).start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await closed.wait()
    assert cluster.broker.members["G"] == {}


async def test_readers_and_producers_whose_closing_was_cancelled_leave_all_the_same(
    cluster: ScriptedCluster, client: Client
) -> None:
    reader = await client.pull_consumer("G").start()
    await reader.subscribe("T")
    producer = await client.producer("P").start()
    await producer.send("T", b"x")
    cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, never_answer, times=10)
    sending = asyncio.create_task(producer.send("T", b"x", timeout=0.3))
    await eventually(lambda: len(cluster.broker.received(RequestCode.SEND_MESSAGE_V2)) == 2, PATIENCE_SECONDS)
    instance = producer._instance
    assert instance is not None
    assert instance is reader._instance
    for one in (reader, producer):
        closing = asyncio.create_task(one.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await asyncio.gather(reader.close(), producer.close())
    with pytest.raises(OrbitError):
        await sending
    assert cluster.broker.members["G"] == {}
    assert instance.users == 0
    assert not any(instance in some for some in instances._open_instances.values())


async def test_a_send_that_connects_while_its_client_closes_fails_and_is_not_cancelled(
    cluster: ScriptedCluster,
) -> None:
    network = VanishingPackets()
    async with client_of(cluster, network=network) as client:
        producer = await client.producer("P").start()
        network.gone.add(cluster.name_server)
        sending = asyncio.create_task(producer.cluster.fetch_route("T"))
        await eventually(lambda: network.waiting, PATIENCE_SECONDS)
        await producer.close()
        with pytest.raises(OrbitError, match="closed"):
            await sending


async def test_an_orderly_member_that_gives_up_a_message_of_its_retry_topic_keeps_where_it_came_from(
    cluster: ScriptedCluster, client: Client
) -> None:
    """A dead letter that was sent to the group again, and fails again."""
    cluster.topics["T"] = 1
    cluster.broker.put("%RETRY%G", 0, b"again", RETRY_TOPIC="T")

    async def handler(message: ReceivedMessage) -> None:
        assert message.topic == "T"
        raise ValueError("no")

    async with client.consumer(
        "T", group="G", orderly=True, start="earliest", handler=handler, suspend=0.01, max_retries=0
    ):
        await eventually(lambda: len(cluster.broker.queues["%RETRY%G", 0]) >= 2)
    given_up = cluster.broker.queues["%RETRY%G", 0][1]
    assert given_up.properties["RETRY_TOPIC"] == "T"
