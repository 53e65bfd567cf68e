"""Pull consumers against a scripted cluster: any offset by fetch, a share of a group by poll."""

import asyncio
import dataclasses
from datetime import UTC, datetime

import pytest

from orbitmq import Client, ConsumeHook, Consuming, QueueRef, ReceivedMessage, Sql, connect
from orbitmq.clock import ManualClock
from orbitmq.errors import AlreadyClosed, ConfigError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PullMessage
from orbitmq.testing import Server
from orbitmq.transport.connection import Connection
from tests.client.scripted import ScriptedCluster, eventually, never_answer, refuse

FIRST, SECOND = QueueRef("T", "broker-a", 0), QueueRef("T", "broker-a", 1)


async def test_fetch_reads_any_queue_at_any_offset(cluster: ScriptedCluster, client: Client) -> None:
    for number in range(100):
        cluster.broker.put("T", 0, str(number).encode(), TAGS="even" if number % 2 == 0 else "odd")
    async with client.pull_consumer("G") as reader:
        assert await reader.queues("T") == [FIRST, SECOND]
        fetched = await reader.fetch(FIRST, offset=10, max=5)
        assert [message.body for message in fetched] == [b"10", b"11", b"12", b"13", b"14"]
        assert (fetched.next_offset, fetched.min_offset, fetched.max_offset) == (15, 0, 100)
        assert len(await reader.fetch(FIRST, offset=0, max=1000)) == 100
        even = await reader.fetch(FIRST, offset=0, max=3, filter="even")
        assert [message.body for message in even] == [b"0", b"2", b"4"]
        nothing = await reader.fetch(SECOND, offset=0)
        assert (len(nothing), nothing.next_offset) == (0, 0)
    assert cluster.broker.heartbeats == []  # looking is not joining


async def test_a_fetch_may_wait_for_the_first_message(cluster: ScriptedCluster, client: Client) -> None:
    async with client.pull_consumer("G") as reader:
        waiting = asyncio.create_task(reader.fetch(SECOND, offset=0, wait=10))
        await eventually(lambda: cluster.broker.received(RequestCode.PULL_MESSAGE))
        cluster.broker.put("T", 1, b"x")
        assert [message.body for message in await waiting] == [b"x"]


async def test_an_offset_beyond_the_end_is_corrected(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"x")
    async with client.pull_consumer("G") as reader:
        fetched = await reader.fetch(FIRST, offset=50)
        assert (len(fetched), fetched.next_offset) == (0, 1)


async def test_offsets_can_be_asked_for_and_committed(cluster: ScriptedCluster, client: Client) -> None:
    for _ in range(5):
        cluster.broker.put("T", 0, b"x")
    async with client.pull_consumer("G") as reader:
        assert await reader.min_offset(FIRST) == 0
        assert await reader.max_offset(FIRST) == 5
        assert await reader.offset_at(FIRST, datetime.fromtimestamp(1_700_000_000.003, UTC)) == 3
        assert await reader.committed(FIRST) is None
        await reader.commit_offset(FIRST, 4)
        assert await reader.committed(FIRST) == 4


async def test_hooks_see_what_each_poll_gives(cluster: ScriptedCluster, client: Client) -> None:
    """Java: DefaultLitePullConsumerImpl.poll, which tells that it was handled, too."""

    class Watching(ConsumeHook):
        def __init__(self) -> None:
            self.seen: list[tuple[str, list[bytes]]] = []

        def before_consume(self, consuming: Consuming) -> None:
            self.seen.append((f"before {consuming.group}", [message.body for message in consuming.messages]))

        def after_consume(self, consuming: Consuming) -> None:
            assert consuming.error is None
            self.seen.append(("after", [message.body for message in consuming.messages]))

    hook, wanted = Watching(), []
    for number in range(3):
        cluster.broker.put("T", 0, str(number).encode())
    async with client.pull_consumer("G", hooks=[hook]) as reader:
        await reader.subscribe("T")
        for count in (2, 1):
            bodies = [message.body for message in await reader.poll(max=count)]
            wanted += [("before G", bodies), ("after", bodies)]
        assert await reader.poll(timeout=0.01) == []
    assert hook.seen == wanted
    assert len(wanted) == 4


async def test_hooks_hear_nothing_of_a_poll_that_a_close_ends_without_messages(client: Client) -> None:
    seen: list[Consuming] = []

    class Watching(ConsumeHook):
        def before_consume(self, consuming: Consuming) -> None:
            seen.append(consuming)

    async with client.pull_consumer("G", hooks=[Watching()]) as reader:
        await reader.subscribe("T")
        polling = asyncio.create_task(reader.poll(timeout=30))
        await asyncio.sleep(0)
        await reader.close()
        assert await polling == []
    assert not seen


async def test_poll_gives_the_next_messages_and_commits_the_ones_before(
    cluster: ScriptedCluster, client: Client
) -> None:
    for number in range(6):
        cluster.broker.put("T", 0, str(number).encode())
    async with client.pull_consumer("G") as reader:
        await reader.subscribe("T")
        first = await reader.poll(max=4)
        assert [message.body for message in first] == [b"0", b"1", b"2", b"3"]
        second = await reader.poll(max=4)
        assert [message.body for message in second] == [b"4", b"5"]
        assert await reader.poll(timeout=0.01) == []
        assert reader.assigned == [FIRST, SECOND]
    assert cluster.broker.offsets["G", "T", 0] == 6
    assert cluster.broker.members["G"] == {}


async def test_a_program_that_fails_reads_its_last_poll_again(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"a")
    cluster.broker.put("T", 0, b"b")

    async def fails() -> None:
        async with client.pull_consumer("G") as reader:
            await reader.subscribe("T")
            await reader.poll(max=1)
            await reader.poll(max=1)
            raise ValueError

    with pytest.raises(ValueError):
        await fails()
    async with client.pull_consumer("G") as reader:
        await reader.subscribe("T")
        assert [message.body for message in await reader.poll()] == [b"b"]


async def test_without_auto_commit_only_commit_counts(cluster: ScriptedCluster, client: Client) -> None:
    for _ in range(4):
        cluster.broker.put("T", 0, b"x")
    async with client.pull_consumer("G", auto_commit=False) as reader:
        await reader.subscribe("T")
        await reader.poll(max=2)
        await reader.commit()
        assert cluster.broker.offsets["G", "T", 0] == 2
        await reader.poll(max=2)
    assert cluster.broker.offsets["G", "T", 0] == 2


async def test_a_commit_that_no_broker_took_says_so(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"x")
    async with client.pull_consumer("G", auto_commit=False) as reader:
        await reader.subscribe("T")
        await reader.poll()
        refusal = refuse(ResponseCode.NO_PERMISSION)
        cluster.broker.inject(RequestCode.UPDATE_CONSUMER_OFFSET, refusal, times=1000)
        with pytest.raises(RequestFailed) as caught:
            await reader.commit()
        assert caught.value.code == ResponseCode.NO_PERMISSION
        cluster.broker.faults.clear()
        await reader.commit()
        assert cluster.broker.offsets["G", "T", 0] == 1


async def test_assigned_queues_are_read_whoever_else_reads_them(cluster: ScriptedCluster, client: Client) -> None:
    cluster.broker.put("T", 0, b"a")
    cluster.broker.put("T", 1, b"b")
    async with client.pull_consumer("G") as reader:
        await reader.assign([SECOND])
        assert [message.body for message in await reader.poll()] == [b"b"]
        assert reader.assigned == [SECOND]
        await reader.seek(SECOND, 0)
        assert [message.body for message in await reader.poll()] == [b"b"]
        reader.pause([SECOND])
        reader.resume([SECOND])
        with pytest.raises(ConfigError):
            await reader.subscribe("T")
        with pytest.raises(ConfigError):
            await reader.assign([FIRST])
    assert cluster.broker.heartbeats == []
    assert cluster.broker.offsets["G", "T", 1] == 1


async def test_an_assignment_that_was_given_up_can_be_made_again(cluster: ScriptedCluster, client: Client) -> None:
    queue = QueueRef("T", "broker-a", 0)
    async with client.pull_consumer("G", start="latest") as reader:
        cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.assign([queue])
        await reader.assign([queue])
        assert reader.assigned == [queue]


async def test_a_subscription_that_follows_one_that_is_given_up_stays(cluster: ScriptedCluster, client: Client) -> None:
    async def unregisters_slowly(command: Command, connection: Connection) -> Command:
        await asyncio.sleep(0.2)
        cluster.broker.members["G"].clear()
        return ok()

    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    cluster.broker.inject(RequestCode.UNREGISTER_CLIENT, unregisters_slowly)
    async with client.pull_consumer("G", start="latest") as reader:
        given_up = asyncio.create_task(reader.subscribe("T"))
        await eventually(lambda: cluster.broker.received(RequestCode.GET_MAX_OFFSET))
        given_up.cancel()
        await reader.subscribe("T")
        assert given_up.cancelled()
        assert len(reader.assigned) == 2
        assert len(cluster.broker.members["G"]) == 1


async def test_latest_passes_over_nothing_of_an_assigned_queue_that_is_made_later(cluster: ScriptedCluster) -> None:
    config = dataclasses.replace(connect(cluster.address).config, clock=ManualClock())
    async with Client(config) as client, client.pull_consumer("G", start="latest") as reader:
        await reader.assign([QueueRef("Later", "broker-a", 0)])
        cluster.topics["Later"] = 1
        cluster.broker.put("Later", 0, b"first")
        assert [message.body for message in await reader.poll(timeout=10)] == [b"first"]


async def test_a_queue_that_is_paused_stays_paused_when_it_is_sought(cluster: ScriptedCluster, client: Client) -> None:
    async with client.pull_consumer("G") as reader:
        await reader.assign([FIRST])
        await eventually(lambda: reader.assigned == [FIRST])
        reader.pause([FIRST])
        await reader.seek(FIRST, 0)
        cluster.broker.put("T", 0, b"x")
        assert not await reader.poll(timeout=0.05)
        reader.resume([FIRST])
        assert [message.body for message in await reader.poll()] == [b"x"]


async def test_what_is_not_assigned_cannot_be_sought(cluster: ScriptedCluster, client: Client) -> None:
    async with client.pull_consumer("G") as reader:
        await reader.assign([FIRST])
        await eventually(lambda: reader.assigned == [FIRST])
        with pytest.raises(ConfigError, match=r"not assigned to this member.*`assigned` lists"):
            await reader.seek(SECOND, 0)
        await reader.seek(FIRST, 0)


async def test_a_reader_keeps_a_pause_for_a_queue_that_goes_and_comes_back(
    cluster: ScriptedCluster, client: Client
) -> None:
    async with client.pull_consumer("G") as one:
        await one.subscribe("T")
        await eventually(lambda: one.assigned == [FIRST, SECOND])
        one.pause([FIRST, SECOND])
        async with client.pull_consumer("G") as other:
            await other.subscribe("T")
            await eventually(lambda: len(one.assigned) == len(other.assigned) == 1)
            (gone,) = other.assigned
        await eventually(lambda: one.assigned == [FIRST, SECOND])
        cluster.broker.put("T", gone.queue_id, b"x")
        assert not await one.poll(timeout=0.1)
        one.resume([gone])
        assert await one.poll()


async def test_closing_ends_a_loop_of_polls(client: Client) -> None:
    """Polls of a closed reader have nothing to wait for: between them nothing else would run, the closing neither."""
    reader = await client.pull_consumer("G").start()
    await reader.subscribe("T")
    polled = 0

    async def polling() -> None:
        nonlocal polled
        while polled < 1000:
            await reader.poll(timeout=10)
            polled += 1

    loop = asyncio.create_task(polling())
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(AlreadyClosed):
        await loop
    assert polled <= 1


async def test_readers_of_one_group_share_its_queues(cluster: ScriptedCluster, client: Client) -> None:
    async with client.pull_consumer("G") as one, client.pull_consumer("G") as other:
        await one.subscribe("T")
        await other.subscribe("T")
        await eventually(lambda: len(one.assigned) == len(other.assigned) == 1)
        assert sorted(one.assigned + other.assigned) == [FIRST, SECOND]


async def test_failures_are_told_with_code_and_hint(cluster: ScriptedCluster, client: Client) -> None:
    reader = client.pull_consumer("G")
    with pytest.raises(AlreadyClosed):
        await reader.queues("T")
    async with reader:
        with pytest.raises(RequestFailed, match="does not exist"):
            await reader.queues("Unknown")
        with pytest.raises(ConfigError, match="nothing to poll"):
            await reader.poll()
        with pytest.raises(ConfigError, match="max is 0"):
            await reader.fetch(FIRST, offset=0, max=0)
        cluster.broker.inject(RequestCode.PULL_MESSAGE, refuse(ResponseCode.NO_PERMISSION, "not you"))
        with pytest.raises(RequestFailed, match="not you") as caught:
            await reader.fetch(FIRST, offset=0)
        assert caught.value.code == ResponseCode.NO_PERMISSION
        assert "credentials" in caught.value.hint


async def test_what_is_no_queue_and_no_offset_is_named(cluster: ScriptedCluster, client: Client) -> None:
    async with client.pull_consumer("G") as reader:
        for offset, complaint in ((-1, "cannot be committed"), ("3", "no whole number"), (3.5, "no whole number")):
            with pytest.raises(ConfigError, match=complaint):
                await reader.commit_offset(FIRST, offset)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'T' is no queue"):
            await reader.max_offset("T")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'T' is no queue"):
            await reader.assign("T")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no whole number"):
            await reader.fetch(FIRST, offset=0, max=1.5)  # type: ignore[arg-type]
        assert cluster.broker.received(RequestCode.UPDATE_CONSUMER_OFFSET) == []
        await reader.assign([FIRST])
        with pytest.raises(ConfigError, match="no list of queues"):
            reader.pause("T")  # type: ignore[arg-type]
    with pytest.raises(AlreadyClosed):
        await reader.assign([FIRST])


async def test_an_sql_filter_is_checked_before_anything_is_polled(cluster: ScriptedCluster, client: Client) -> None:
    refused = refuse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "bad sql")
    async with client.pull_consumer("G") as reader:
        for reading in (reader.subscribe("T", Sql("a >")), reader.assign([FIRST], Sql("a >"))):
            cluster.broker.inject(RequestCode.CHECK_CLIENT_CONFIG, refused)
            with pytest.raises(RequestFailed, match="bad sql"):
                await reading
        await reader.subscribe("T", Sql("a > 1"))


async def test_assigned_queues_can_be_filtered_by_sql(cluster: ScriptedCluster, client: Client) -> None:
    """What no heartbeat announces has to be said with the pull."""
    async with client.pull_consumer("Reader") as reader:
        await reader.assign(await reader.queues("T"), filter=Sql("a > 1"))
        await eventually(lambda: cluster.broker.received(RequestCode.PULL_MESSAGE))
    header = cluster.broker.received(RequestCode.PULL_MESSAGE)[0].read(PullMessage)
    assert (header.subscription, header.sys_flag & PULL_SUBSCRIPTION) == ("a > 1", PULL_SUBSCRIPTION)


def test_assigned_queues_can_be_filtered_by_sql_on_our_broker() -> None:
    async def run(address: str) -> list[bytes]:
        async with connect(address) as client, client.producer("P") as producer:
            await producer.send("Sqls", b"one", properties={"a": "1"})
            await producer.send("Sqls", b"five", properties={"a": "5"})
            async with client.pull_consumer("Reader") as reader:
                await reader.assign(await reader.queues("Sqls"), filter=Sql("a > 1"))
                found: list[bytes] = []
                for _ in range(4):
                    found += [message.body for message in await reader.poll(timeout=1)]
                return found

    with Server(settings={"enablePropertyFilter": "true"}) as server:
        assert asyncio.run(run(server.address)) == [b"five"]


async def test_subscribing_again_after_a_failure_reads(cluster: ScriptedCluster) -> None:
    """The name server was away at the first attempt."""
    port = cluster.name_server.port
    await cluster.stop("name server")
    cluster.broker.put("T", 0, b"x")
    async with connect(f"127.0.0.1:{port}", timeout=0.5) as client, client.pull_consumer("Reader") as reader:
        with pytest.raises(TransportError, match="no name server"):
            await reader.subscribe("T")
        await cluster.start_name_server(port)
        for _ in range(50):  # connecting again has a back-off
            try:
                await reader.subscribe("T")
            except TransportError:
                await asyncio.sleep(0.1)
            else:
                break
        found: list[ReceivedMessage] = []
        for _ in range(5):
            found += await reader.poll(timeout=1)
        assert [message.body for message in found] == [b"x"]


@pytest.mark.parametrize("namespace", ["", "shop"])  # which is no part of a light queue's name
@pytest.mark.parametrize("known", [False, True])
async def test_light_queues_are_read_by_their_own_offsets(known: bool, namespace: str) -> None:
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with Server(settings=settings) as server:
        async with connect(server.address, namespace=namespace) as client, client.producer("P") as producer:
            for number in range(6):
                light = "%LMQ%a,%LMQ%b" if number % 2 else "%LMQ%a"
                receipt = await producer.send(
                    "T", str(number), order_key="k", properties={"INNER_MULTI_DISPATCH": light}
                )
        light_queue = QueueRef("%LMQ%b", receipt.queue.broker_name, 0)
        async with connect(server.address, namespace=namespace) as client:  # which has no route of that broker yet
            if known:
                await (await client.producer("P").start()).queues("T")
            async with client.pull_consumer("G") as reader:
                fetched = await reader.fetch(light_queue, offset=1)
                assert [(one.body, one.queue, one.queue_offset) for one in fetched] == [
                    (b"3", light_queue, 1), (b"5", light_queue, 2),
                ]  # fmt: skip
                await reader.assign([light_queue])
                [first] = await reader.poll(max=1)
                await reader.commit()
                assert (first.body, await reader.committed(light_queue)) == (b"1", 1)
                assert [one.body for one in await reader.poll()] == [b"3", b"5"]
                await reader.commit()
                assert await reader.committed(light_queue) == 3


async def test_topics_that_only_brokers_write_to_can_be_read(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client, client.pull_consumer("G") as reader:
        assert len(await reader.queues("SCHEDULE_TOPIC_XXXX")) == 18
        await reader.subscribe("SCHEDULE_TOPIC_XXXX")
        client.consumer("SCHEDULE_TOPIC_XXXX", group="G")
        client.lease_consumer("SCHEDULE_TOPIC_XXXX", group="G")


async def test_what_was_asked_about_too_often_can_be_read() -> None:
    settings = {"transactionTimeOut": "100", "transactionCheckInterval": "100", "transactionCheckMax": "1"}
    with Server(settings=settings) as server:

        def put_aside() -> list[ReceivedMessage]:
            server.clock.advance(seconds=1)
            return server.sent("TRANS_CHECK_MAX_TIME_TOPIC")

        async with (
            connect(server.address) as client,
            client.transaction_producer("P", check=lambda message: None) as producer,
        ):
            async with producer.begin("T", b"undecided"):
                pass
            await eventually(put_aside, 30)
        assert [message.body for message in put_aside()] == [b"undecided"]
