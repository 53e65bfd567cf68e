"""Consumers against a scripted cluster: joining, handling, retrying, sharing, leaving."""

import asyncio
import dataclasses
import functools
import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from orbitmq import (
    Client,
    ConsumeHook,
    Consumer,
    Consuming,
    Message,
    QueueRef,
    ReceivedMessage,
    RetryLater,
    Sql,
    connect,
    fastjson,
)
from orbitmq.clock import ManualClock
from orbitmq.errors import AlreadyClosed, ConfigError, ConnectFailed, MessageError, RequestFailed
from orbitmq.message.record import encode_stored
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import ConsumerStatusBody, QueueOffsets
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, request
from orbitmq.protocol.headers.groups import ConsumeDirectly, ConsumerRunningInfo, ConsumerStatus, ResetOffset
from orbitmq.protocol.headers.offsets import OffsetFound
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PullMessage
from orbitmq.protocol.headers.send import SendBack, SendMessageV2, SendReceipt
from orbitmq.testing import Server
from orbitmq.transport.connection import Connection
from tests.client.scripted import ScriptedCluster, eventually, hang_up, never_answer, refuse

PULL, SEND_BACK = RequestCode.PULL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK


class Collected:
    """A handler that remembers; `wait` until it has seen so many."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)

    async def wait(self, count: int) -> None:
        await eventually(lambda: len(self.messages) >= count)


async def reset(cluster: ScriptedCluster, topic: str, offset: int) -> None:
    """As a tool does; until the members have committed that they are there."""
    del cluster.broker.offsets["G", topic, 0]
    connection = next(iter(cluster.broker.members["G"].values()))
    body = QueueOffsets({QueueKey(broker_name="broker-a", queue_id=0, topic=topic): offset}).to_json()
    header = ResetOffset(topic=topic, group="G", timestamp=-1)
    connection.notify(request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body))
    await eventually(lambda: ("G", topic, 0) in cluster.broker.offsets)


# ---- the everyday


async def test_a_handler_gets_what_is_there_and_what_comes(cluster: ScriptedCluster, client: Client) -> None:
    broker, seen = cluster.broker, Collected()
    for number in range(10):
        broker.put("T", number % 2, str(number).encode(), TAGS="t", KEYS="k", own="1")
    async with client.consumer("T", group="G", start="earliest", handler=seen):
        await seen.wait(10)
        broker.put("T", 0, b"new")
        await seen.wait(11)
    assert seen.bodies == sorted([*(str(number).encode() for number in range(10)), b"new"])
    first = seen.messages[0]
    assert (first.topic, first.tag, first.keys, first.properties["own"], first.attempt) == ("T", "t", ["k"], "1", 1)
    assert broker.offsets["G", "T", 0] == 6
    assert broker.offsets["G", "T", 1] == 5


async def test_what_is_decoded_when_asked_for_is_what_was_stored(cluster: ScriptedCluster, client: Client) -> None:
    kept = cluster.broker.put("T", 0, b"body", TAGS="x", KEYS="k1 k2", UNIQ_KEY="id", colour="blue")
    seen = Collected()
    async with client.consumer("T", group="G", filter="x", start="earliest", handler=seen):
        await seen.wait(1)
    [message] = seen.messages
    assert (message.body, message.tag, message.keys, message.properties["colour"]) == (
        b"body",
        "x",
        ["k1", "k2"],
        "blue",
    )
    assert (message.message_id, message.stored.commit_log_offset) == ("id", kept.commit_log_offset)
    assert message.stored.raw_properties == kept.raw_properties
    message.properties["colour"] = "green"
    assert message.properties["colour"] == "green"


async def test_messages_can_be_iterated_over(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"a")
    cluster.broker.put("T", 0, b"b")
    bodies = []
    async with client.consumer("T", group="G", start="earliest") as consumer:
        async for message in consumer:
            async with message.process():
                bodies.append(message.body)
            if len(bodies) == 2:
                break
    assert bodies == [b"a", b"b"]
    assert cluster.broker.offsets["G", "T", 0] == 2


async def test_closing_ends_an_iteration_that_waits(client: Client) -> None:
    consumer = await client.consumer("T", group="G").start()

    async def read() -> list[ReceivedMessage]:
        return [message async for message in consumer]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.02)
    await consumer.close()
    assert await reading == []


async def test_what_was_not_settled_comes_again(cluster: ScriptedCluster, client: Client) -> None:
    for body in (b"a", b"b", b"c"):
        cluster.broker.put("T", 0, body)
    async with client.consumer("T", group="G", start="earliest") as consumer:
        first, second = await anext(consumer), await anext(consumer)
        second.ack()  # done, but behind one that is not
        assert first.body == b"a"
    assert cluster.broker.offsets.get(("G", "T", 0), 0) == 0
    async with client.consumer("T", group="G", start="earliest") as consumer:
        assert [(await anext(consumer)).body for _ in range(3)] == [b"a", b"b", b"c"]


async def test_latest_begins_behind_what_is_there(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"old")
    seen = Collected()
    async with client.consumer("T", group="G", handler=seen) as consumer:
        await eventually(lambda: len(consumer.assigned) == 2)
        cluster.broker.put("T", 0, b"new")
        await seen.wait(1)
    assert seen.bodies == [b"new"]


@pytest.mark.parametrize("is_subscribed_later", [False, True])
async def test_what_is_sent_once_a_consumer_has_started_comes(
    cluster: ScriptedCluster, client: Client, is_subscribed_later: bool
) -> None:
    cluster.topics["U"] = 1
    cluster.broker.put("T", 0, b"old")
    seen = Collected()
    async with client.consumer("U" if is_subscribed_later else "T", group="G", handler=seen) as consumer:
        if is_subscribed_later:
            await consumer.subscribe("T")
        cluster.broker.put("T", 0, b"new")
        await seen.wait(1)
    assert seen.bodies == [b"new"]


def attentive_client(cluster: ScriptedCluster, clock: ManualClock) -> Client:
    """Soon notices another route. The scripted broker stores its first message when the clock begins, then one a millisecond."""
    return Client(dataclasses.replace(connect(cluster.address).config, clock=clock, route_refresh_seconds=0.05))


def put_long_ago(cluster: ScriptedCluster, topic: str) -> None:
    cluster.broker.put(topic, 0, b"old")
    cluster.broker.queues[topic, 0][0].stored_at_ms -= 3_600_000


@pytest.mark.parametrize(("topic", "queues_before"), [("Later", 0), ("T", 2)])
async def test_latest_passes_over_nothing_of_what_is_made_later(
    cluster: ScriptedCluster, topic: str, queues_before: int
) -> None:
    seen = Collected()
    for queue_id in range(queues_before):
        cluster.broker.put(topic, queue_id, b"old")
    async with attentive_client(cluster, ManualClock()) as client, client.consumer(topic, group="G", handler=seen):
        cluster.topics[topic] = queues_before + 1
        cluster.broker.put(topic, queues_before, b"first")
        await seen.wait(1)
    assert seen.bodies == [b"first"]


async def test_latest_passes_over_what_a_topic_had_that_was_out_of_sight(cluster: ScriptedCluster) -> None:
    seen = Collected()
    put_long_ago(cluster, "Hidden")
    async with (
        attentive_client(cluster, ManualClock()) as client,
        client.consumer("Hidden", group="G", handler=seen) as consumer,
    ):
        cluster.topics["Hidden"] = 1
        await eventually(lambda: consumer.assigned)
        cluster.broker.put("Hidden", 0, b"new")
        await seen.wait(1)
    assert seen.bodies == [b"new"]


@pytest.mark.parametrize(
    ("refused", "times"),
    [
        (RequestCode.GET_MAX_OFFSET, 1),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 1),
        (RequestCode.LOCK_BATCH_MQ, 1),
        (RequestCode.HEART_BEAT, 2),
    ],
)
async def test_latest_passes_over_nothing_when_the_first_attempt_to_read_fails(
    cluster: ScriptedCluster, refused: RequestCode, times: int
) -> None:
    seen = Collected()
    cluster.topics["T"] = 1
    put_long_ago(cluster, "T")
    cluster.broker.inject(refused, refuse(ResponseCode.SYSTEM_ERROR), times)
    async with (
        attentive_client(cluster, ManualClock()) as client,
        client.consumer("T", group="G", orderly=refused is RequestCode.LOCK_BATCH_MQ, handler=seen),
    ):
        cluster.broker.put("T", 0, b"new")
        await seen.wait(1)
    assert seen.bodies == [b"new"]


async def test_latest_passes_over_nothing_in_queues_of_a_member_that_goes_before_it_begins(
    cluster: ScriptedCluster,
) -> None:
    cluster.topics["T"] = 1
    clock, seen = ManualClock(), Collected()
    slow = dataclasses.replace(connect(cluster.address).config, clock=clock, instance_name="slow")
    async with (
        attentive_client(cluster, clock) as client,
        Client(slow) as other_client,
        client.consumer("T", group="G", handler=seen) as consumer,
    ):
        async with other_client.consumer("T", group="G", handler=seen):
            cluster.topics["T"] = 2
            await asyncio.sleep(
                0.3
            )  # the first one notices, and leaves the new queue to the other, which has not noticed
            for queue_id in range(2):
                cluster.broker.put("T", queue_id, b"%d" % queue_id)
            await asyncio.sleep(0.1)
        await eventually(lambda: len(consumer.assigned) == 2)
        await seen.wait(2)
    assert sorted(set(seen.bodies)) == [b"0", b"1"]


async def test_a_topic_that_is_subscribed_while_the_name_server_is_away_is_read_from_then_on(
    cluster: ScriptedCluster,
) -> None:
    cluster.topics["U"] = 1
    seen = Collected()
    put_long_ago(cluster, "U")
    async with (
        attentive_client(cluster, ManualClock()) as client,
        client.consumer("T", group="G", handler=seen) as consumer,
    ):
        port = cluster.name_server.port
        await cluster.stop("name server")
        await consumer.subscribe("U")
        cluster.broker.put("U", 0, b"new")
        await cluster.start_name_server(port)
        await seen.wait(1)
    assert seen.bodies == [b"new"]


async def test_a_handler_may_name_the_consumer_that_it_belongs_to(cluster: ScriptedCluster, client: Client) -> None:
    handled = Collected()

    async def handler(message: ReceivedMessage) -> None:
        assert consumer.assigned  # is there as soon as anything is handled
        await handled(message)

    cluster.broker.put("T", 0, b"was there")
    async with client.consumer("T", group="G", start="earliest", handler=handler) as consumer:
        await handled.wait(1)
        assert consumer.stats.failed == 0


async def test_a_consumer_that_is_cancelled_while_it_starts_goes_on_with_nothing(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    consumer = client.consumer("T", group="G", handler=Collected())
    starting = asyncio.create_task(consumer.start())
    await eventually(lambda: cluster.broker.received(RequestCode.GET_MAX_OFFSET))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert consumer.closed
    assert cluster.broker.members["G"] == {}


async def test_a_consumer_that_is_closed_while_it_starts_says_so(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    consumer = client.consumer("T", group="G", handler=Collected())
    starting = asyncio.create_task(consumer.start())
    await eventually(lambda: cluster.broker.received(RequestCode.GET_MAX_OFFSET))
    await consumer.close()
    with pytest.raises(AlreadyClosed, match="was closed while it started"):
        await starting
    assert cluster.broker.members["G"] == {}


async def test_a_second_start_waits_for_the_first(cluster: ScriptedCluster, client: Client) -> None:
    answered = asyncio.Event()

    async def late(command: Command, connection: Connection) -> Command:
        await answered.wait()
        return answer(ResponseCode.SUCCESS, header=OffsetFound(offset=0))

    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, late, times=2)
    consumer = client.consumer("T", group="G", handler=Collected())
    starts = [asyncio.create_task(consumer.start()) for _ in range(3)]
    await eventually(lambda: len(cluster.broker.received(RequestCode.GET_MAX_OFFSET)) == 2)
    starts[2].cancel()  # which is one that waits
    await asyncio.sleep(0.05)
    assert [start.done() for start in starts] == [False, False, True]
    answered.set()
    assert await starts[0] is await starts[1] is await consumer.start() is consumer
    assert len(consumer.assigned) == 2


async def test_starts_at_once_fail_together_and_can_be_tried_again(client: Client, cluster: ScriptedCluster) -> None:
    port = cluster.name_server.port
    await cluster.stop("name server")
    consumer = client.consumer("T", group="G")
    outcomes = await asyncio.gather(consumer.start(), consumer.start(), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ConnectFailed, ConnectFailed]
    await cluster.start_name_server(port)
    async with asyncio.timeout(10):
        while not await _started(consumer):
            await asyncio.sleep(0.01)
    assert len(consumer.assigned) == 2


async def _started(consumer: Consumer) -> bool:
    try:
        await consumer.start()
    except ConnectFailed:
        return False
    return True


async def test_who_waits_for_a_start_that_is_cancelled_hears_of_it(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    consumer = client.consumer("T", group="G")
    first, second = asyncio.create_task(consumer.start()), asyncio.create_task(consumer.start())
    await eventually(lambda: cluster.broker.received(RequestCode.GET_MAX_OFFSET))
    first.cancel()
    with pytest.raises(AlreadyClosed, match="was cancelled"):
        await second
    assert consumer.closed


async def test_a_thread_that_a_tool_made_work_before_the_start_had_ended_ends_with_the_consumer(
    cluster: ScriptedCluster, client: Client
) -> None:
    def handler(message: ReceivedMessage) -> None:
        pass

    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    consumer = client.consumer("T", group="G", handler=handler)
    starting = asyncio.create_task(consumer.start())
    await eventually(lambda: cluster.broker.received(RequestCode.GET_MAX_OFFSET))
    [connection] = cluster.broker.members["G"].values()
    record = encode_stored(cluster.broker.put("Elsewhere", 0, b"x"))
    header = ConsumeDirectly(consumer_group="G", broker_name="broker-a")
    told = await connection.call(request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record), 3)
    assert "CR_SUCCESS" in told.body.decode()
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await starting
    await eventually(lambda: not any(one.name.startswith("orbitmq-G") for one in threading.enumerate()))


async def test_latest_passes_over_nothing_of_a_queue_whose_beginning_no_broker_has_noted(
    cluster: ScriptedCluster,
) -> None:
    """The member has begun there, has it given up, and gets it back: where the group is, nobody knows."""
    seen = Collected()
    put_long_ago(cluster, "T")
    cluster.broker.inject(RequestCode.UPDATE_CONSUMER_OFFSET, refuse(ResponseCode.SYSTEM_ERROR), times=1000)

    async def never_ends(message: ReceivedMessage) -> None:
        await seen(message)
        await asyncio.Event().wait()

    async with (
        attentive_client(cluster, ManualClock()) as client,
        client.consumer("T", group="G", handler=never_ends, close_timeout=0.1) as consumer,
    ):
        cluster.broker.put("T", 0, b"new")
        await seen.wait(1)
        cluster.topics["T"] = 0
        await eventually(lambda: not consumer.assigned)
        cluster.topics["T"] = 2
        await seen.wait(2)
    assert seen.bodies == [b"new", b"new"]


async def test_a_point_in_time_begins_there(cluster: ScriptedCluster, client: Client) -> None:
    for number in range(10):
        cluster.broker.put("T", 0, str(number).encode())
    seen = Collected()
    start = datetime.fromtimestamp(1_700_000_000.007, UTC)  # the scripted broker stores one a millisecond
    async with client.consumer("T", group="G", start=start, handler=seen):
        await seen.wait(3)
    assert seen.bodies == [b"7", b"8", b"9"]


async def test_tags_are_compared_here_too(cluster: ScriptedCluster, client: Client) -> None:
    # The scripted broker does not filter at all, as a hash collision would on a real one.
    for tag in ("new", "paid", "other", "new"):
        cluster.broker.put("T", 0, tag.encode(), TAGS=tag)
    cluster.broker.put("T", 0, b"untagged")
    seen = Collected()
    async with client.consumer("T", group="G", start="earliest", filter="new || paid", handler=seen):
        await seen.wait(3)
        await eventually(lambda: cluster.broker.offsets.get(("G", "T", 0)) == 5 or _pulled_to(cluster, 5))
    assert seen.bodies == [b"new", b"new", b"paid"]
    assert cluster.broker.offsets["G", "T", 0] == 5
    data = cluster.broker.heartbeats[0].consumer_data_set[0]
    subscription = next(one for one in data.subscription_data_set if one.topic == "T")
    assert (subscription.tags_set, subscription.expression_type) == (["new", "paid"], "TAG")


async def test_an_sql_filter_is_checked_before_anything_is_consumed(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.inject(RequestCode.CHECK_CLIENT_CONFIG, refuse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "bad sql"))
    with pytest.raises(RequestFailed, match="bad sql") as caught:
        await client.consumer("T", group="G", filter=Sql("a >")).start()
    assert "filter" in caught.value.hint
    async with client.consumer("T", group="G", filter=Sql("a > 1"), start="earliest"):
        await eventually(lambda: cluster.broker.received(PULL))
    header = next(one.read(PullMessage) for one in cluster.broker.received(PULL) if one.fields["topic"] == "T")
    assert (header.expression_type, header.subscription, header.sys_flag & 4) == ("SQL92", None, 0)


@pytest.mark.parametrize(("first", "then"), [("old", "new"), ("old", "*"), (Sql("a = 'old'"), "new")])
async def test_another_filter_holds_for_what_comes_from_then_on(first: str | Sql, then: str) -> None:
    with Server(settings={"enablePropertyFilter": "true"}) as server:
        async with connect(server.address) as client, client.producer("P") as producer:
            await producer.send("T", b"first", tag="old", properties={"a": "old"}, order_key="k")
            seen = Collected()
            async with client.consumer("T", group="G", filter=first, start="earliest", handler=seen) as consumer:
                await seen.wait(1)
                # Brokers hold a pull now, for whatever matches the first filter.
                await consumer.subscribe("T", then)
                await producer.send("T", b"new", tag="new", order_key="k")
                await producer.send("T", b"old", tag="old", properties={"a": "old"}, order_key="k")
                await producer.send("T", b"last", tag="new", order_key="k")
                await eventually(lambda: b"last" in seen.bodies)
    wanted = [b"first", b"last", b"new"] + ([b"old"] if then == "*" else [])
    assert seen.bodies == wanted


async def test_a_topic_that_is_wanted_again_is_read_by_its_new_filter() -> None:
    with Server() as server:
        async with connect(server.address) as client, client.producer("P") as producer:
            await producer.send("T", b"first", tag="old", order_key="k")
            seen = Collected()
            async with client.consumer("T", group="G", filter="old", start="earliest", handler=seen) as consumer:
                await seen.wait(1)
                await consumer.unsubscribe("T")
                await consumer.subscribe("T", "new")  # before its queues were given up
                await producer.send("T", b"new", tag="new", order_key="k")
                await seen.wait(2)
    assert seen.bodies == [b"first", b"new"]


async def test_several_topics_each_with_its_filter(cluster: ScriptedCluster, client: Client) -> None:
    cluster.topics["U"] = 1
    cluster.broker.put("T", 0, b"t", TAGS="x")
    cluster.broker.put("U", 0, b"u1", TAGS="y")
    cluster.broker.put("U", 0, b"u2", TAGS="z")
    seen = Collected()
    async with client.consumer({"T": None, "U": "y"}, group="G", start="earliest", handler=seen):
        await seen.wait(2)
    assert seen.bodies == [b"t", b"u1"]


async def test_blocking_handlers_run_in_threads_side_by_side(cluster: ScriptedCluster, client: Client) -> None:
    import threading

    meeting = threading.Barrier(3, timeout=5)
    names: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        meeting.wait()
        names.append(threading.current_thread().name)

    for _ in range(3):
        cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler, concurrency=3) as consumer:
        await eventually(lambda: consumer.stats.acked == 3)
    assert len(set(names)) == 3
    assert all(name.startswith("orbitmq-G") for name in names)


async def test_batch_handlers_get_lists_of_one_queue(cluster: ScriptedCluster, client: Client) -> None:
    batches: list[list[ReceivedMessage]] = []

    async def handler(messages: list[ReceivedMessage]) -> None:
        batches.append(messages)

    for number in range(20):
        cluster.broker.put("T", number % 2, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler, batch_size=8) as consumer:
        await eventually(lambda: consumer.stats.acked == 20)
    assert max(len(batch) for batch in batches) == 8
    assert all(len({message.queue for message in batch}) == 1 for batch in batches)


async def test_handlers_get_values_by_their_annotation(cluster: ScriptedCluster, client: Client) -> None:
    class Order(msgspec.Struct):
        id: int

    got: list[object] = []

    async def one(order: Order) -> None:
        got.append(order)

    async def many(orders: list[Order]) -> None:
        got.append(orders)

    async def text(body: str) -> None:
        got.append(body)

    async def whole(message: Message) -> None:
        got.append(type(message))

    one.__annotations__["order"] = Order  # local classes are out of reach of get_type_hints
    many.__annotations__["orders"] = list[Order]
    cluster.broker.put("T", 0, b'{"id":7}')
    async with (
        client.consumer("T", group="G1", start="earliest", handler=one),
        client.consumer("T", group="G2", start="earliest", handler=many, batch_size=2),
        client.consumer("T", group="G3", start="earliest", handler=text),
        client.consumer("T", group="G4", start="earliest", handler=whole),
    ):
        await eventually(lambda: len(got) == 4)
    assert Order(7) in got
    assert [Order(7)] in got
    assert '{"id":7}' in got
    assert ReceivedMessage in got


async def test_handlers_may_be_partials_lambdas_and_objects(cluster: ScriptedCluster, client: Client) -> None:
    got: list[tuple[str, str]] = []

    async def handler(kind: str, body: str) -> None:
        got.append((kind, body))

    class Object:
        async def __call__(self, body: str) -> None:
            got.append(("object", body))

    def plain(message: ReceivedMessage) -> None:
        got.append(("function", message.body.decode()))

    cluster.broker.put("T", 0, b"x")
    async with (
        client.consumer("T", group="G1", start="earliest", handler=functools.partial(handler, "partial")),
        client.consumer("T", group="G2", start="earliest", handler=Object()),
        client.consumer("T", group="G3", start="earliest", handler=lambda message: handler("lambda", message.tag)),
        client.consumer("T", group="G4", start="earliest", handler=plain),
    ):
        await eventually(lambda: len(got) == 4)
    assert sorted(got) == [("function", "x"), ("lambda", ""), ("object", "x"), ("partial", "x")]


async def test_what_a_handler_returns_means_nothing(cluster: ScriptedCluster, client: Client) -> None:
    # As `return ConsumeStatus.CONSUME_SUCCESS`, and what a lambda around a blocking call returns.
    def blocking(message: ReceivedMessage) -> Any:
        return message.body

    async def waiting(message: ReceivedMessage) -> Any:
        return message.body

    cluster.broker.put("T", 0, b"x")
    async with (
        client.consumer("T", group="G1", start="earliest", handler=blocking) as one,
        client.consumer("T", group="G2", start="earliest", handler=waiting) as other,
    ):
        await eventually(lambda: one.stats.acked + one.stats.failed == other.stats.acked + other.stats.failed == 1)
    assert (one.stats.acked, one.stats.failed) == (other.stats.acked, other.stats.failed) == (1, 0)


# ---- failing handlers


async def test_an_exception_gives_the_message_back_and_it_comes_again(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Collected()

    async def handler(message: ReceivedMessage) -> None:
        await seen(message)
        if message.attempt < 3:
            raise ValueError("not yet")

    cluster.broker.put("T", 1, b"x", TAGS="a")
    async with client.consumer("T", group="G", start="earliest", filter="a", handler=handler) as consumer:
        await seen.wait(3)
        await eventually(lambda: consumer.stats.acked == 1)
        assert (consumer.stats.failed, consumer.stats.retried) == (2, 2)
    assert [(message.topic, message.attempt) for message in seen.messages] == [("T", 1), ("T", 2), ("T", 3)]
    assert cluster.broker.offsets["G", "T", 1] == 1
    header = cluster.broker.received(SEND_BACK)[0].read(SendBack)
    assert (header.group, header.delay_level, header.max_reconsume_times) == ("G", 0, 16)
    assert "not yet" in caplog.text


async def test_a_handler_may_choose_the_delay_and_is_then_not_an_error(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise RetryLater(delay_level=5)

    cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler, max_retries=3) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
    header = cluster.broker.received(SEND_BACK)[0].read(SendBack)
    assert (header.delay_level, header.max_reconsume_times) == (5, 3)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_when_the_broker_does_not_take_it_back_it_goes_to_the_retry_topic(
    cluster: ScriptedCluster, client: Client
) -> None:
    seen = Collected()

    async def handler(message: ReceivedMessage) -> None:
        await seen(message)
        if message.attempt == 1:
            raise RetryLater

    cluster.broker.inject(SEND_BACK, refuse(ResponseCode.SYSTEM_ERROR))
    cluster.broker.put("T", 0, b"x", UNIQ_KEY="id-1", TRAN_MSG="true")
    async with client.consumer("T", group="G", start="earliest", handler=handler):
        await seen.wait(2)
    again = cluster.broker.queues["%RETRY%G", 0][0]
    assert again.reconsume_times == 1
    assert again.properties == {"UNIQ_KEY": "id-1", "RETRY_TOPIC": "T", "DELAY": "3", "ORIGIN_MESSAGE_ID": "id-1"}
    header = cluster.broker.received(RequestCode.SEND_MESSAGE_V2)[0].read(SendMessageV2)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%G", 1, 16)


async def test_a_copy_that_may_not_get_to_the_disk_does_not_count_as_given_back(
    cluster: ScriptedCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.settling._AGAIN_HERE_SECONDS", 0.01)
    attempts: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise RetryLater

    async def late(command: Command, connection: Connection) -> Command:
        receipt = SendReceipt(msg_id="0" * 32, queue_id=0, queue_offset=5)
        return answer(ResponseCode.FLUSH_DISK_TIMEOUT, header=receipt)

    cluster.broker.inject(SEND_BACK, refuse(ResponseCode.SYSTEM_ERROR))
    cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, late)
    cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler):
        await eventually(lambda: attempts == [1, 2], 30)
    assert cluster.broker.offsets["G", "T", 0] == 1


async def test_process_swallows_what_a_block_raises_but_not_cancellation(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest") as consumer:
        message = await anext(consumer)
        async with message.process():
            raise ValueError("bad message")
        assert consumer.stats.retried == 1
        again = await anext(consumer)
        assert again.attempt == 2
        with pytest.raises(asyncio.CancelledError):
            async with again.process():
                raise asyncio.CancelledError
        assert consumer.stats.acked == 0


async def test_a_message_that_fails_after_its_queue_went_to_another_member_is_left_to_that_one(
    cluster: ScriptedCluster, client: Client
) -> None:
    release, entered = asyncio.Event(), 0
    seen = Collected()

    async def failing(message: ReceivedMessage) -> None:
        nonlocal entered
        entered += 1
        await release.wait()
        raise RetryLater

    for queue_id in (0, 1):
        cluster.broker.put("T", queue_id, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=failing) as first:
        await eventually(lambda: entered == 2)
        async with client.consumer("T", group="G", start="earliest", handler=seen):
            await seen.wait(1)
            release.set()
            await eventually(lambda: first.stats.failed >= 2 and cluster.broker.received(SEND_BACK))
    given_back = [one.read(SendBack).offset for one in cluster.broker.received(SEND_BACK)]
    assert seen.messages[0].stored.commit_log_offset not in given_back


async def test_a_message_that_is_settled_twice_counts_once(cluster: ScriptedCluster, client: Client) -> None:
    for body in (b"acked", b"retried"):
        cluster.broker.put("T", 0, body)
    async with client.consumer("T", group="G", start="earliest") as consumer:
        acked, retried = [await anext(consumer) for _ in range(2)]
        await retried.retry()
        for message in (acked, acked, retried):
            message.ack()
        assert (consumer.stats.acked, consumer.stats.retried) == (1, 1)


async def test_a_message_whose_handler_hangs_is_given_back(cluster: ScriptedCluster, client: Client) -> None:
    hanging = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            await hanging.wait()

    cluster.broker.put("T", 0, b"stuck")
    cluster.broker.put("T", 0, b"fine")
    consumer = client.consumer("T", group="G", start="earliest", handler=handler, consume_timeout=0.1)
    async with consumer:
        await eventually(lambda: consumer.stats.acked == 2)
        hanging.set()
    assert cluster.broker.received(SEND_BACK)[0].read(SendBack).delay_level == 3
    assert cluster.broker.offsets["G", "T", 0] == 2


async def test_a_hanging_handler_does_not_hold_up_closing_for_ever(cluster: ScriptedCluster, client: Client) -> None:
    started = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    cluster.broker.put("T", 0, b"x")
    consumer = await client.consumer("T", group="G", start="earliest", handler=handler, close_timeout=0.05).start()
    await started.wait()
    async with asyncio.timeout(3):
        await consumer.close()
    assert cluster.broker.offsets.get(("G", "T", 0), 0) == 0


async def test_handlers_may_close_their_own_consumer_at_once(cluster: ScriptedCluster, client: Client) -> None:
    both = asyncio.Barrier(2)

    async def handler(message: ReceivedMessage) -> None:
        await both.wait()
        if message.body == b"b":
            await asyncio.sleep(0.05)  # the other one's closing is under way
        await consumer.close()

    for body in (b"a", b"b"):
        cluster.broker.put("T", 0, body)
    async with client.consumer("T", group="G", start="earliest", handler=handler, close_timeout=3600) as consumer:
        async with asyncio.timeout(10):
            await consumer.wait_closed()
    assert cluster.broker.members["G"] == {}


async def test_closing_lets_running_handlers_finish(cluster: ScriptedCluster, client: Client) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await release.wait()

    cluster.broker.put("T", 0, b"x")
    consumer = await client.consumer("T", group="G", start="earliest", handler=handler).start()
    await started.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    release.set()
    await closing
    assert cluster.broker.offsets["G", "T", 0] == 1
    assert cluster.broker.members["G"] == {}


# ---- sharing


async def test_members_share_the_queues_and_take_over_when_one_leaves(cluster: ScriptedCluster, client: Client) -> None:
    async with client.consumer("T", group="G") as first:
        await eventually(lambda: len(first.assigned) == 2)
        async with client.consumer("T", group="G") as second:
            await eventually(lambda: len(first.assigned) == len(second.assigned) == 1)
            assert sorted(first.assigned + second.assigned) == [
                QueueRef("T", "broker-a", 0),
                QueueRef("T", "broker-a", 1),
            ]
            assert len(cluster.broker.members["G"]) == 2  # one client id each, though in one process
        await eventually(lambda: len(first.assigned) == 2)


async def test_a_new_queue_is_consumed_when_the_route_says_so(cluster: ScriptedCluster) -> None:
    config = dataclasses.replace(connect(cluster.address).config, route_refresh_seconds=0.05)
    async with Client(config) as client, client.consumer("T", group="G") as consumer:
        await eventually(lambda: len(consumer.assigned) == 2)
        cluster.topics["T"] = 3
        await eventually(lambda: len(consumer.assigned) == 3)


async def test_every_broadcasting_member_gets_everything_and_keeps_its_place_in_a_file(
    cluster: ScriptedCluster, client: Client, tmp_path: Path
) -> None:
    cluster.broker.put("T", 0, b"a")
    for round_number in (1, 2):
        seen = Collected()
        async with client.consumer(
            "T", group="G", broadcasting=True, start="earliest", handler=seen, offset_directory=tmp_path
        ) as consumer:
            await eventually(lambda: len(consumer.assigned) == 2)
            cluster.broker.put("T", 1, b"b%d" % round_number)
            await seen.wait(2 if round_number == 1 else 1)
            expected = [b"a", b"b1"] if round_number == 1 else [b"b2"]
            assert seen.bodies == expected
    [path] = tmp_path.rglob("offsets.json")
    assert path.parent.name == "G"
    assert path.parent.parent.name.endswith("@DEFAULT")
    table = QueueOffsets.from_json(path.read_bytes()).offsets
    assert {(key.queue_id, offset) for key, offset in table.items()} == {(0, 1), (1, 2)}
    assert cluster.broker.offsets == {}


async def test_broadcasting_has_no_retries(cluster: ScriptedCluster, client: Client, tmp_path: Path) -> None:
    async def handler(message: ReceivedMessage) -> None:
        raise RetryLater

    cluster.broker.put("T", 0, b"x")
    async with client.consumer(
        "T", group="G", broadcasting=True, start="earliest", handler=handler, offset_directory=str(tmp_path)
    ) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
    assert not cluster.broker.received(SEND_BACK)


async def test_members_that_disagree_are_told(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.topics["U"] = 1
    async with client.consumer("T", group="G"), client.consumer("U", group="G"):
        await eventually(lambda: "disagree about topic" in caplog.text)


# ---- orderly


async def test_orderly_handles_each_queue_one_by_one_and_retries_in_place(
    cluster: ScriptedCluster, client: Client
) -> None:
    order: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    running: set[int] = set()

    async def handler(message: ReceivedMessage) -> None:
        queue_id = message.queue.queue_id
        assert queue_id not in running
        running.add(queue_id)
        await asyncio.sleep(0.001)
        running.discard(queue_id)
        order[queue_id].append((message.queue_offset, message.attempt))
        if message.queue_offset == 2 and message.attempt < 3:
            raise RetryLater

    for number in range(10):
        cluster.broker.put("T", number % 2, b"x")
    async with client.consumer(
        "T", group="G", orderly=True, start="earliest", handler=handler, suspend=0.01
    ) as consumer:
        await eventually(lambda: consumer.stats.acked == 10)
        assert len(cluster.broker.locks) == 3  # two queues and the retry topic's
    expected = [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]
    assert order == {0: expected, 1: expected}
    assert not cluster.broker.received(SEND_BACK)
    assert cluster.broker.locks == {}
    assert cluster.broker.offsets["G", "T", 0] == 5


async def test_orderly_gives_up_after_max_retries(cluster: ScriptedCluster, client: Client) -> None:
    attempts: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        raise RetryLater

    cluster.broker.put("T", 0, b"x")
    async with client.consumer(
        "T", group="G", orderly=True, start="earliest", handler=handler, suspend=0.01, max_retries=1
    ):
        await eventually(lambda: cluster.broker.received(RequestCode.SEND_MESSAGE_V2))
    header = cluster.broker.received(RequestCode.SEND_MESSAGE_V2)[0].read(SendMessageV2)
    # More than max: a real broker puts it among the dead letters.
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%G", 2, 1)
    assert attempts[:2] == [1, 2]


async def test_orderly_goes_on_behind_a_message_that_its_handler_gives_up(
    cluster: ScriptedCluster, client: Client
) -> None:
    seen = Collected()

    async def handler(message: ReceivedMessage) -> None:
        await seen(message)
        if message.body == b"0" and message.queue.topic == "T":  # this broker knows no dead letters: it comes again
            raise RetryLater(delay_level=-1)

    for number in range(2):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", orderly=True, start="earliest", handler=handler):
        await eventually(lambda: b"1" in seen.bodies)
    [given_up] = cluster.broker.received(RequestCode.SEND_MESSAGE_V2)
    header = given_up.read(SendMessageV2)
    assert header.topic == "%RETRY%G"
    assert header.reconsume_times > (header.max_reconsume_times or 0)  # whatever its queue's lock, a dead letter


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_is_given_back_by_hand_is_not_acked_by_the_end_of_its_block(
    cluster: ScriptedCluster, client: Client, orderly: bool
) -> None:
    for number in range(3):
        cluster.broker.put("T", 0, b"%d" % number)
    bodies: list[bytes] = []
    async with client.consumer("T", group="G", orderly=orderly, start="earliest", suspend=0.01) as consumer:
        async with asyncio.timeout(5):
            async for message in consumer:
                bodies.append(message.body)
                async with message.process():
                    if bodies == [b"0"]:
                        await message.retry()
                if len(bodies) == 4:
                    break
    if orderly:
        assert bodies == [b"0", b"0", b"1", b"2"]
    assert sorted(bodies) == [b"0", b"0", b"1", b"2"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_may_ack_some_of_its_batch_by_hand(
    cluster: ScriptedCluster, client: Client, orderly: bool
) -> None:
    running = 0

    async def handler(messages: list[ReceivedMessage]) -> None:
        nonlocal running
        running += 1
        assert running == 1 or not orderly
        messages[0].ack()
        await asyncio.sleep(0.01)
        running -= 1

    for number in range(4):
        cluster.broker.put("T", 0, b"%d" % number)
    options: dict[str, Any] = {"orderly": orderly, "start": "earliest", "batch_size": 2, "commit_every": 0.01}
    async with client.consumer("T", group="G", handler=handler, **options) as consumer:
        await eventually(lambda: cluster.broker.offsets.get(("G", "T", 0)) == 4)
        assert consumer.stats.acked == 4


async def test_what_an_orderly_handler_gives_back_one_by_one_comes_again_in_its_order(
    cluster: ScriptedCluster, client: Client
) -> None:
    calls: list[list[bytes]] = []

    async def handler(messages: list[ReceivedMessage]) -> None:
        calls.append([message.body for message in messages])
        if len(calls) == 1:
            for message in messages:
                await message.retry()

    for number in range(4):
        cluster.broker.put("T", 0, b"%d" % number)
    options: dict[str, Any] = {"orderly": True, "start": "earliest", "batch_size": 3, "suspend": 0.01}
    async with client.consumer("T", group="G", handler=handler, **options) as consumer:
        await eventually(lambda: consumer.stats.acked == 4)
    assert calls == [[b"0", b"1", b"2"], [b"0", b"1", b"2"], [b"3"]]


async def test_an_orderly_queue_goes_on_when_giving_a_message_up_is_cancelled(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, never_answer)
    seen: list[bytes] = []
    for number in range(2):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", orderly=True, start="earliest", suspend=0.01) as consumer:
        async with asyncio.timeout(5):
            async for message in consumer:
                seen.append(message.body)
                if len(seen) > 1:
                    message.ack()
                    if len(seen) == 3:
                        break
                    continue
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await message.retry(-1)
    assert seen == [b"0", b"0", b"1"]


async def test_a_queue_locked_by_somebody_else_is_left_alone_until_it_is_free(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.broker.locks["G", "T", 0] = "somebody"
    seen = Collected()
    cluster.broker.put("T", 0, b"locked")
    cluster.broker.put("T", 1, b"free")
    async with client.consumer("T", group="G", orderly=True, start="earliest", handler=seen):
        await seen.wait(1)
        assert seen.bodies == [b"free"]
        del cluster.broker.locks["G", "T", 0]
        await seen.wait(2)


async def test_an_orderly_queue_changes_hands_between_messages(cluster: ScriptedCluster, client: Client) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    running = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal running
        running += 1
        assert running == 1
        entered.set()
        await release.wait()
        running -= 1

    for _ in range(3):
        cluster.broker.put("T", 1, b"x")
    async with client.consumer("T", group="G", orderly=True, start="earliest", handler=handler) as first:
        await entered.wait()
        async with client.consumer("T", group="G", orderly=True, start="earliest", handler=handler) as second:
            await eventually(lambda: len(first.assigned) == 1)
            await asyncio.sleep(0.05)
            assert running == 1
            release.set()
            await eventually(lambda: first.stats.acked + second.stats.acked == 3)


async def test_the_first_commits_of_a_group_are_not_sent_at_once(cluster: ScriptedCluster, client: Client) -> None:
    cluster.topics["Wide"] = 8
    for number in range(16):
        cluster.broker.put("Wide", number % 8, b"x")
    seen = Collected()
    async with client.consumer("Wide", group="G", orderly=True, start="earliest", handler=seen):
        await seen.wait(16)
    assert {key[2]: offset for key, offset in cluster.broker.offsets.items() if key[1] == "Wide"} == dict.fromkeys(
        range(8), 2
    )


async def test_an_orderly_queue_is_not_let_go_before_its_offset_is_committed(
    cluster: ScriptedCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.membership._COMMIT_AGAIN_SECONDS", 0.01)
    first, second = Collected(), Collected()
    for queue_id in (0, 1):
        cluster.broker.put("T", queue_id, b"x")
    async with client.consumer("T", group="G", orderly=True, start="earliest", handler=first):
        await first.wait(2)
        cluster.broker.inject(RequestCode.UPDATE_CONSUMER_OFFSET, refuse(ResponseCode.SYSTEM_ERROR), times=5)
        async with client.consumer("T", group="G", orderly=True, start="earliest", handler=second) as other:
            await eventually(lambda: len(other.assigned) == 1)
            assert cluster.broker.offsets["G", "T", other.assigned[0].queue_id] == 1
    assert not second.messages
    assert not any(one.read(PullMessage).sys_flag & PULL_COMMIT_OFFSET for one in cluster.broker.received(PULL))


# ---- steering


async def test_pause_resume_and_seek(cluster: ScriptedCluster, client: Client) -> None:
    seen = Collected()
    queue = QueueRef("T", "broker-a", 0)
    for number in range(5):
        cluster.broker.put("T", 0, str(number).encode())
    async with client.consumer("T", group="G", start="earliest", handler=seen) as consumer:
        await seen.wait(5)
        await consumer.seek(queue, 3)
        await seen.wait(7)
        assert [message.body for message in seen.messages[5:]] == [b"3", b"4"]
        await consumer.seek(queue, "earliest")
        await seen.wait(12)
        consumer.pause([queue])
        await consumer.seek(queue, "latest")
        consumer.resume([queue])
        cluster.broker.put("T", 0, b"5")
        await seen.wait(13)
        assert seen.messages[-1].body == b"5"


async def test_of_two_seeks_at_once_the_later_one_counts(cluster: ScriptedCluster, client: Client) -> None:
    seen, queue = Collected(), QueueRef("T", "broker-a", 0)
    for number in range(5):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", start="earliest", handler=seen) as consumer:
        await seen.wait(5)
        await asyncio.gather(consumer.seek(queue, 4), consumer.seek(queue, 2))
        await eventually(lambda: [message.body for message in seen.messages[-3:]] == [b"2", b"3", b"4"])


async def test_what_is_paused_stays_paused_wherever_it_is_sent_and_whatever_comes(
    cluster: ScriptedCluster, client: Client
) -> None:
    seen, queue = Collected(), QueueRef("T", "broker-a", 0)
    async with client.consumer("T", group="G", start="earliest", handler=seen) as consumer:
        await eventually(lambda: len(consumer.assigned) == 2)
        consumer.pause()
        cluster.topics["U"] = 1
        for topic in "TU":
            cluster.broker.put(topic, 0, topic.encode())
        await consumer.subscribe("U")
        await eventually(lambda: len(consumer.assigned) == 3)
        await seen.wait(1)  # the pull that waited when its queue was paused
        await consumer.seek(queue, 1)
        await reset(cluster, "T", 0)
        await asyncio.sleep(0.05)
        assert len(seen.messages) == 1
        consumer.resume([queue])
        await seen.wait(2)
        await consumer.seek(queue, 0)
        await seen.wait(3)
        assert {message.topic for message in seen.messages} == {"T"}
        consumer.resume()
        await seen.wait(4)


@pytest.mark.parametrize("paused_before", [False, True])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_queue_stays_paused_that_goes_to_another_member_and_comes_back(
    cluster: ScriptedCluster, client: Client, orderly: bool, paused_before: bool
) -> None:
    seen, queues = Collected(), [QueueRef("T", "broker-a", number) for number in range(2)]
    async with client.consumer("T", group="G", orderly=orderly, start="earliest", handler=seen) as consumer:
        await eventually(lambda: consumer.assigned == queues)
        if paused_before:
            consumer.pause(queues)
        async with client.consumer("T", group="G", orderly=orderly, start="earliest", handler=Collected()) as other:
            await eventually(lambda: len(other.assigned) == len(consumer.assigned) == 1)
            (gone,) = other.assigned
            consumer.pause([gone])
        await eventually(lambda: consumer.assigned == queues)
        cluster.broker.put("T", gone.queue_id, b"x")
        await asyncio.sleep(0.1)
        assert not seen.messages
        consumer.resume([gone])
        await seen.wait(1)


@pytest.mark.parametrize("is_pulling", [False, True])
async def test_of_two_subscriptions_within_a_millisecond_the_later_one_is_newer(
    cluster: ScriptedCluster, is_pulling: bool
) -> None:
    """Brokers keep the one that they have if the version is not higher; and a clock may be set back."""
    clock = ManualClock()

    def versions() -> list[tuple[int, str]]:
        told = [one for beat in cluster.broker.heartbeats for one in beat.consumer_data_set]
        ours = {(one.sub_version, one.sub_string) for data in told for one in data.subscription_data_set}
        return sorted((version, tags) for version, tags in ours if tags != "*")

    config = dataclasses.replace(connect(cluster.address).config, clock=clock)
    async with (
        Client(config) as client,
        client.pull_consumer("G") if is_pulling else client.consumer("T", group="G", handler=Collected()) as consumer,
    ):
        await consumer.subscribe("T", "a")
        await consumer.subscribe("T", "b")
        clock.advance(ms=-10)
        await consumer.subscribe("T", "c")
        assert [tags for _, tags in versions()] == ["a", "b", "c"]
        assert len({version for version, _ in versions()}) == 3


async def test_what_is_not_assigned_cannot_be_sought(cluster: ScriptedCluster, client: Client) -> None:
    async with client.consumer("T", group="G", handler=Collected()) as consumer:
        await eventually(lambda: len(consumer.assigned) == 2)
        for start in (0, "earliest"):
            with pytest.raises(ConfigError, match=r"broker-z.*not assigned to this member.*`assigned` lists"):
                await consumer.seek(QueueRef("T", "broker-z", 0), start)


async def test_an_offset_to_seek_may_be_any_whole_number(cluster: ScriptedCluster, client: Client) -> None:
    queue, seen = QueueRef("T", "broker-a", 0), Collected()
    for number in range(3):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", start="latest", handler=seen) as consumer:
        await eventually(lambda: queue in consumer.assigned)
        await consumer.seek(queue, np.int64(1))  # type: ignore[arg-type]
        await seen.wait(2)
    assert seen.bodies == [b"1", b"2"]


@pytest.mark.parametrize("mistaken", ["earlest", timedelta(days=1), None, 1.5])
async def test_a_place_that_is_none_is_not_taken_for_the_end(
    cluster: ScriptedCluster, client: Client, mistaken: Any
) -> None:
    cluster.broker.put("T", 0, b"x")
    with pytest.raises(ConfigError, match="is unknown"):
        client.consumer("T", group="G", start=mistaken)
    async with client.consumer("T", group="G", start="earliest", handler=Collected()) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
        with pytest.raises(ConfigError, match="is unknown"):
            await consumer.seek(QueueRef("T", "broker-a", 0), mistaken)


@pytest.mark.parametrize("option", ["commit_every", "consume_timeout", "suspend"])
def test_a_consumer_that_would_never_rest_is_refused(client: Client, option: str) -> None:
    for seconds in (0, -1):
        given: dict[str, Any] = {option: seconds}
        with pytest.raises(ConfigError, match=f"{option} is {seconds}"):
            client.consumer("T", group="G", **given)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"concurrency": 1.5}, "concurrency is 1.5, which is no whole number"),
        ({"pull_batch_size": "32"}, "pull_batch_size is '32', which is no whole number"),
        ({"max_retries": "3"}, "max_retries is '3'"),
        ({"max_cached_messages": 1.5}, "max_cached_messages is 1.5"),
        ({"max_span": -1}, "max_span is -1"),
        ({"commit_every": timedelta(seconds=5)}, "commit_every is .* no number of seconds"),
        ({"close_timeout": "5"}, "close_timeout is '5', which is no number of seconds"),
        ({"strategy": 5}, "strategy 5 cannot be called"),
        ({"handler": 5}, "5 cannot be called"),
        ({"handler": lambda: None}, "cannot be called with a message: too many positional arguments"),
        ({"handler": lambda message, more: None}, "cannot be called with a message: missing a required argument"),
    ],
)
def test_options_of_a_wrong_type_are_named_when_a_consumer_is_made(
    client: Client, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        client.consumer("T", group="G", **options)


@pytest.mark.parametrize("handler", [dict.update, functools.partial(print, "seen"), [].append])
def test_handlers_that_may_do_are_taken(client: Client, handler: Any) -> None:
    client.consumer("T", group="G", handler=handler)
    options: dict[str, Any] = {"concurrency": np.int64(3), "suspend": np.float32(1.5)}
    client.consumer("T", group="G", handler=handler, **options)


async def test_what_is_no_list_of_queues_is_not_paused(client: Client) -> None:
    async with client.consumer("T", group="G") as consumer:
        for wrong in ("T", ["T"], [0]):
            with pytest.raises(ConfigError, match="no list of queues"):
                consumer.pause(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="no list of queues"):
                consumer.resume(wrong)  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="not a valid name"):
            await consumer.unsubscribe(5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="time zone"):
            await consumer.seek(consumer.assigned[0], datetime(2026, 1, 1))  # noqa: DTZ001 - it has none


async def test_a_handler_may_close_its_consumer_that_a_blocking_handler_of_another_has_started(
    cluster: ScriptedCluster, client: Client
) -> None:
    cluster.broker.put("T", 0, b"x")
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    async def close(_: ReceivedMessage) -> None:
        await inner.close()
        ended.set()

    inner = client.consumer("T", group="Inner", start="earliest", handler=close, close_timeout=6)

    async def start_and_wait() -> None:
        await inner.start()
        await ended.wait()

    def start(_: ReceivedMessage) -> None:
        asyncio.run_coroutine_threadsafe(start_and_wait(), loop).result(timeout=5)

    async with client.consumer("T", group="Outer", start="earliest", handler=start):
        async with asyncio.timeout(5):
            await ended.wait()


async def test_workers_without_a_message_are_not_late_however_little_time_a_close_has(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.consumer("T", group="G", handler=[].append, concurrency=3, close_timeout=0):
        await asyncio.sleep(0)
    assert "did not end" not in caplog.text


async def test_an_iteration_over_a_consumer_that_is_closed_before_it_was_started_ends(client: Client) -> None:
    consumer = client.consumer("T", group="G")
    await consumer.close()
    async with asyncio.timeout(5):
        assert [message async for message in consumer] == []


async def test_an_iteration_during_a_start_that_fails_ends_when_the_consumer_is_closed(
    cluster: ScriptedCluster, client: Client
) -> None:
    consumer = client.consumer("T", group="G")
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0)

    async def iterate() -> list[bytes]:
        return [message.body async for message in consumer]

    iterating = asyncio.create_task(iterate())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await consumer.close()
    async with asyncio.timeout(5):
        assert await iterating == []


async def test_an_iteration_over_a_consumer_that_was_not_started_says_so(client: Client) -> None:
    consumer = client.consumer("T", group="G")
    with pytest.raises(AlreadyClosed, match="not started"):
        await anext(consumer)
    leases = client.lease_consumer("T", group="G")
    with pytest.raises(AlreadyClosed, match="not started"):
        await anext(leases)


async def test_a_filter_that_is_no_text_is_named(client: Client) -> None:
    for mistaken in (7, Sql(7)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            await client.consumer("T", group="G", filter=mistaken).start()  # type: ignore[arg-type]
        assert caught.value.hint


async def test_a_queue_that_moves_while_its_topic_is_given_up_is_read_when_that_is_wanted_again(
    cluster: ScriptedCluster, client: Client
) -> None:
    committed, heard = asyncio.Event(), asyncio.Event()

    async def commits_late(command: Command, connection: Connection) -> Command:
        await committed.wait()
        return answer(ResponseCode.SUCCESS)

    async def hears_late(command: Command, connection: Connection) -> Command:
        await heard.wait()
        return answer(ResponseCode.SUCCESS)

    queue, seen = QueueRef("T", "broker-a", 0), Collected()
    for body in (b"x", b"again"):
        cluster.broker.put("T", 0, body)
    async with client.consumer("T", group="G", start="earliest", handler=seen, commit_every=60) as consumer:
        await seen.wait(2)
        cluster.broker.inject(RequestCode.UPDATE_CONSUMER_OFFSET, commits_late)
        cluster.broker.inject(RequestCode.HEART_BEAT, hears_late, times=2)
        seeking = asyncio.create_task(consumer.seek(queue, 1))
        await eventually(lambda: not cluster.broker.faults[RequestCode.UPDATE_CONSUMER_OFFSET])
        leaving = asyncio.create_task(consumer.unsubscribe("T"))
        await eventually(lambda: len(cluster.broker.faults[RequestCode.HEART_BEAT]) == 1)
        committed.set()
        await seeking
        coming = asyncio.create_task(consumer.subscribe("T"))
        await eventually(lambda: not cluster.broker.faults[RequestCode.HEART_BEAT])
        heard.set()
        await asyncio.gather(leaving, coming)
        cluster.broker.put("T", 0, b"y")
        await eventually(lambda: b"y" in seen.bodies)


@pytest.mark.parametrize("given_up", [False, True])
async def test_an_orderly_queue_has_one_handler_at_a_time_also_while_it_is_sought(
    cluster: ScriptedCluster, client: Client, given_up: bool
) -> None:
    queue, entered, release = QueueRef("T", "broker-a", 0), asyncio.Event(), asyncio.Event()
    handled: list[bytes] = []
    running = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal running
        running += 1
        assert running == 1
        handled.append(message.body)
        entered.set()
        await release.wait()
        await asyncio.sleep(0.001)
        running -= 1

    for number in range(5):
        cluster.broker.put("T", 0, b"%d" % number)
    async with client.consumer("T", group="G", orderly=True, start="earliest", handler=handler) as consumer:
        await entered.wait()
        await eventually(lambda: any(one.read(PullMessage).queue_offset == 5 for one in cluster.broker.received(PULL)))
        seeking = asyncio.create_task(consumer.seek(queue, 2))
        await asyncio.sleep(0.01)
        for number in range(5, 8):
            cluster.broker.put("T", 0, b"%d" % number)
        await asyncio.sleep(0.05)
        if given_up:
            seeking.cancel()
        release.set()
        await asyncio.wait([seeking])
        assert seeking.cancelled() == given_up
        await eventually(lambda: consumer.stats.acked == 7)
    assert handled == [b"0", b"2", b"3", b"4", b"5", b"6", b"7"]


async def test_topics_can_be_added_and_taken_away_while_it_runs(cluster: ScriptedCluster, client: Client) -> None:
    cluster.topics["U"] = 1
    seen = Collected()
    async with client.consumer("T", group="G", start="earliest", handler=seen) as consumer:
        await eventually(lambda: len(consumer.assigned) == 2)
        await consumer.subscribe("U", "x")
        await eventually(lambda: len(consumer.assigned) == 3)
        cluster.broker.put("U", 0, b"u", TAGS="x")
        await seen.wait(1)
        await consumer.unsubscribe("T")
        await eventually(lambda: [queue.topic for queue in consumer.assigned] == ["U"])


async def test_pulling_pauses_while_too_much_waits(cluster: ScriptedCluster, client: Client) -> None:
    gate = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await gate.wait()

    for _ in range(300):
        cluster.broker.put("T", 0, b"x")
    async with client.consumer(
        "T", group="G", start="earliest", handler=handler, max_cached_messages=50, pull_batch_size=10
    ) as consumer:
        await eventually(lambda: consumer.stats.received >= 51)
        await asyncio.sleep(0.05)
        assert consumer.stats.received == 60  # one batch past the limit, as the limit is looked at before a pull
        gate.set()
        await eventually(lambda: consumer.stats.acked == 300)


async def test_an_offset_that_no_longer_exists_is_corrected(cluster: ScriptedCluster, client: Client) -> None:
    for number in range(10):
        cluster.broker.put("T", 0, str(number).encode())
    cluster.broker.offsets["G", "T", 0] = 2
    cluster.broker.min_offsets["T", 0] = 7
    cluster.broker.offsets["G", "T", 1] = 99
    seen = Collected()
    async with client.consumer("T", group="G", handler=seen):
        await seen.wait(3)
        await eventually(lambda: cluster.broker.offsets["G", "T", 1] == 0)
    assert seen.bodies == [b"7", b"8", b"9"]
    assert cluster.broker.offsets["G", "T", 0] == 10


# ---- what brokers ask


async def test_a_tool_can_move_the_group_elsewhere(cluster: ScriptedCluster, client: Client) -> None:
    seen = Collected()
    for number in range(4):
        cluster.broker.put("T", 0, str(number).encode())
    async with client.consumer("T", group="G", start="earliest", handler=seen):
        await seen.wait(4)
        await reset(cluster, "T", 2)
        await seen.wait(6)
        assert [message.body for message in seen.messages[4:]] == [b"2", b"3"]


async def test_a_tool_can_ask_how_things_are(cluster: ScriptedCluster, client: Client) -> None:
    seen = Collected()
    cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=seen) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
        client_id, connection = next(iter(cluster.broker.members["G"].items()))
        asked = request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatus(topic="T", group="G"))
        status = ConsumerStatusBody.from_json((await connection.call(asked, 3)).body)
        assert {key.queue_id: offset for key, offset in status.own.items()} == {0: 1, 1: 0}

        header = ConsumerRunningInfo(consumer_group="G", client_id=client_id, jstack_enable=True)
        answer = await connection.call(request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), 3)
        assert answer.code == ResponseCode.SUCCESS
        text = answer.body.decode()
        assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in text
        assert '"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in text
        assert "rebalancing G" in text  # the tasks, in place of Java's threads
        status_of_topic = fastjson.loads(answer.body)["statusTable"]["T"]
        assert status_of_topic["consumeOKTPS"] > 0
        assert status_of_topic["pullTPS"] > 0
        assert status_of_topic["pullRT"] > 0
        assert status_of_topic["consumeFailedMsgs"] == 0

        header = ConsumerRunningInfo(consumer_group="Unknown", client_id=client_id)
        answer = await connection.call(request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), 3)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_tool_can_have_one_message_handled_now(cluster: ScriptedCluster, client: Client) -> None:
    async def handler(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("no good")

    async with client.consumer("T", group="G", handler=handler):
        await eventually(lambda: cluster.broker.members["G"])
        connection = next(iter(cluster.broker.members["G"].values()))
        header = ConsumeDirectly(consumer_group="G", broker_name="broker-a")
        for body, verdict in ((b"good", "CR_SUCCESS"), (b"bad", "CR_THROW_EXCEPTION")):
            record = encode_stored(cluster.broker.put("Elsewhere", 0, body))
            answer = await connection.call(request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record), 3)
            assert verdict in answer.body.decode()


# ---- faults


async def test_a_connection_that_breaks_is_opened_again_and_nothing_is_lost(
    cluster: ScriptedCluster, client: Client
) -> None:
    seen = Collected()
    async with client.consumer("T", group="G", start="earliest", handler=seen):
        cluster.broker.put("T", 0, b"a")
        await seen.wait(1)
        for connection in list(cluster.servers["broker-a"].connections):
            connection.abort()
        cluster.broker.put("T", 0, b"b")
        await seen.wait(2)
    assert seen.bodies == [b"a", b"b"]


async def test_a_broker_that_restarts_learns_of_the_group_again(cluster: ScriptedCluster, client: Client) -> None:
    seen = Collected()
    async with client.consumer("T", group="G", start="earliest", handler=seen):
        cluster.broker.put("T", 0, b"a")
        await seen.wait(1)
        port = cluster.broker.address.port
        await cluster.stop("broker-a")
        cluster.broker.members.clear()
        await cluster.start_broker(cluster.broker, port)
        cluster.broker.put("T", 0, b"b")
        await seen.wait(2)
        await eventually(lambda: cluster.broker.members["G"])


async def test_pull_errors_are_waited_out(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.inject(PULL, refuse(ResponseCode.FLOW_CONTROL), times=3)
    cluster.broker.inject(PULL, hang_up)
    cluster.broker.put("T", 0, b"x")
    seen = Collected()
    async with client.consumer("T", group="G", start="earliest", handler=seen):
        await seen.wait(1)


async def test_a_topic_that_comes_later_is_consumed_then(cluster: ScriptedCluster, client: Client) -> None:
    seen = Collected()
    async with client.consumer("Later", group="G", start="earliest", handler=seen) as consumer:
        await asyncio.sleep(0.02)
        cluster.topics["Later"] = 1
        cluster.broker.put("Later", 0, b"x")
        await eventually(lambda: consumer.assigned, seconds=10)
        await seen.wait(1)


async def test_an_unreachable_cluster_shows_at_the_start() -> None:
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(ConnectFailed, match="no name server answers"):
            await client.consumer("T", group="G").start()


async def test_a_closed_consumer_says_so(client: Client) -> None:
    consumer = client.consumer("T", group="G")
    with pytest.raises(AlreadyClosed, match="not started"):
        consumer.pause()
    async with consumer:
        pass
    with pytest.raises(AlreadyClosed):
        await consumer.subscribe("U")
    with pytest.raises(AlreadyClosed):
        await consumer.start()


async def test_a_consumer_with_a_handler_cannot_be_iterated_over(client: Client) -> None:
    consumer = client.consumer("T", group="G", handler=Collected())
    with pytest.raises(ConfigError, match="has a handler"):
        aiter(consumer)


class Watching(ConsumeHook):
    def __init__(self) -> None:
        self.begun = 0
        self.seen: list[Consuming] = []

    def before_consume(self, consuming: Consuming) -> None:
        self.begun += 1
        consuming.context["mine"] = self.begun

    def after_consume(self, consuming: Consuming) -> None:
        assert consuming.context["mine"] in range(1, self.begun + 1)
        self.seen.append(consuming)


async def test_hooks_see_every_call_of_the_handler(cluster: ScriptedCluster, client: Client) -> None:
    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise RetryLater

    hook = Watching()
    cluster.broker.put("T", 0, b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler, hooks=[hook]) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
    assert [type(one.error) for one in hook.seen] == [RetryLater, type(None)]


@pytest.mark.parametrize("orderly", [False, True])
async def test_hooks_see_every_message_of_an_iteration(cluster: ScriptedCluster, client: Client, orderly: bool) -> None:
    """From when it is handed out until it is settled, in whatever way; settling it again tells them nothing new."""
    hook, mistake = Watching(), ValueError("not this one")
    for body in (b"processed", b"acked", b"failed", b"given back"):
        cluster.broker.put("T", 0, body)
    options: dict[str, Any] = {"orderly": orderly, "suspend": 0.01, "hooks": [hook]}
    async with client.consumer("T", group="G", start="earliest", **options) as consumer:
        settled = 0
        async for message in consumer:
            assert (hook.begun, len(hook.seen)) == (settled + 1, settled)
            if message.body == b"processed" or message.attempt > 1:
                async with message.process():
                    pass
            elif message.body == b"acked":
                message.ack()
                message.ack()
            elif message.body == b"failed":
                async with message.process():
                    raise mistake
            else:
                await message.retry(3)
            settled += 1
            assert (hook.begun, len(hook.seen)) == (settled, settled)
            if settled == 6:
                break
    found = {(one.messages[0].body, repr(one.error), one.group) for one in hook.seen}
    later = repr(RetryLater(delay_level=3))
    assert found == {
        (b"processed", "None", "G"), (b"acked", "None", "G"), (b"failed", repr(mistake), "G"), (b"failed", "None", "G"),
        (b"given back", later, "G"), (b"given back", "None", "G"),
    }  # fmt: skip
    assert all(one.seconds >= 0 for one in hook.seen)


async def test_a_namespace_is_invisible_to_handlers(cluster: ScriptedCluster) -> None:
    cluster.topics["shop%T"] = 1
    cluster.broker.put("shop%T", 0, b"x")
    attempts: list[tuple[str, QueueRef, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append((message.topic, message.queue, message.attempt))
        if message.attempt == 1:
            raise RetryLater

    async with (
        connect(cluster.address, namespace="shop") as client,
        client.consumer("T", group="G", start="earliest", handler=handler) as consumer,
    ):
        await eventually(lambda: consumer.stats.acked == 1)
        assert consumer.assigned == [QueueRef("T", "broker-a", 0)]
    assert [(topic, attempt) for topic, _, attempt in attempts] == [("T", 1), ("T", 2)]
    assert attempts[0][1] == QueueRef("T", "broker-a", 0)
    assert "%RETRY%shop%G" in {topic for topic, _ in cluster.broker.queues}


def _pulled_to(cluster: ScriptedCluster, offset: int) -> bool:
    return any(one.read(PullMessage).queue_offset >= offset for one in cluster.broker.received(PULL))
