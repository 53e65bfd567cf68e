"""Message traces in Java's format, and spans of OpenTelemetry."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from orbitmq import Client, Message, OpenTelemetry, Receipt, ReceivedMessage, RetryLater, SendHook, Tracer, connect
from orbitmq.client.producer import Producer
from orbitmq.errors import ConfigError, MessageError, RequestFailed
from orbitmq.message.compression import plain_body
from orbitmq.message.record import encode_stored
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.transactions import CheckTransactionState
from tests.client.scripted import ScriptedCluster, eventually, refuse, scripted_cluster

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with scripted_cluster(topics={"T": 1, TRACE_TOPIC: 1}) as cluster:
        yield cluster


def records(cluster: ScriptedCluster) -> list[list[str]]:
    messages = cluster.broker.queues[TRACE_TOPIC, 0]
    bodies = [plain_body(message.body, message.sys_flag).decode() for message in messages]
    texts = [record for body in bodies for record in body.split("\x02") if record]
    return [text.split("\x01") for text in texts]


async def test_sends_are_traced_as_java_does(cluster: ScriptedCluster, client: Client) -> None:
    async with Tracer(client) as tracer, client.producer("P", hooks=[tracer]) as producer:
        receipt = await producer.send("T", b"hello", tag="new", keys=["k1", "k2"])
        await producer.send("T", b"plain")
        cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(RequestFailed):
            await producer.send("T", b"refused")
    first, plain, refused = records(cluster)
    kind, _, region, group, topic, message_id, tag, keys, host, size, _, message_type, offset_id, success = first
    assert (kind, region, group, topic, message_id) == ("Pub", "DefaultRegion", "P", "T", receipt.message_id)
    assert (tag, keys, host, size) == ("new", "k1 k2", str(cluster.broker.address), "5")
    assert (message_type, offset_id, success) == ("0", receipt.offset_id, "true")
    assert (plain[6], plain[7]) == ("null", "null")
    assert refused[-1] == "false"
    [sent] = cluster.broker.queues[TRACE_TOPIC, 0]
    assert sent.keys[:3] == [receipt.message_id, "k1", "k2"]


async def test_traces_of_long_keys_share_no_message_that_cannot_hold_them(
    cluster: ScriptedCluster, client: Client
) -> None:
    keys = [f"{number}{'é' * 1000}" for number in range(40)]
    async with Tracer(client, batch_size=1000) as tracer, client.producer("P", hooks=[tracer]) as producer:
        for key in keys:
            await producer.send("T", b"x", keys=key)
    assert tracer.lost == 0
    assert [record[7] for record in records(cluster)] == keys
    assert {key for message in cluster.broker.queues[TRACE_TOPIC, 0] for key in message.keys} >= set(keys)


@pytest.mark.parametrize("mistaken", [{"topic": "a b"}, {"batch_size": 0}, {"every_seconds": 0}])
async def test_a_tracer_that_could_not_work_is_refused(client: Client, mistaken: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, MessageError)) as caught:
        Tracer(client, **mistaken)
    assert caught.value.hint


async def test_the_ends_of_transactions_are_traced_as_java_does(cluster: ScriptedCluster, client: Client) -> None:
    async def check(message: ReceivedMessage) -> bool | None:
        return False

    async with Tracer(client) as tracer, client.transaction_producer("P", check=check, hooks=[tracer]) as producer:
        async with producer.begin("T", b"x", tag="pay", keys="k") as committed:
            committed.commit()
        async with producer.begin("T", b"y") as undecided:
            pass
        half = cluster.broker.queues["T", 0][1]
        header = CheckTransactionState(
            tran_state_table_offset=half.queue_offset, commit_log_offset=half.commit_log_offset, topic="T"
        )
        asked = request(RequestCode.CHECK_TRANSACTION_STATE, header, encode_stored(half))
        await eventually(lambda: "P" in cluster.broker.producers)
        cluster.broker.producers["P"].notify(asked)
        await eventually(lambda: len(cluster.broker.received(RequestCode.END_TRANSACTION)) == 3)
    halves = [record for record in records(cluster) if record[0] == "Pub"]
    assert [record[11] for record in halves] == ["1", "1"]  # Java: Trans_Msg_Half
    ends = [record for record in records(cluster) if record[0] == "EndTransaction"]
    address, first, second = str(cluster.broker.address), committed.receipt.message_id, undecided.receipt.message_id
    assert [record[2:] for record in ends] == [
        ["DefaultRegion", "P", "T", first, "pay", "k", address, "2", first, "COMMIT_MESSAGE", "false"],
        ["DefaultRegion", "P", "T", second, "null", "null", address, "2", second, "UNKNOW", "false"],
        ["DefaultRegion", "P", "T", second, "null", "null", address, "2", second, "ROLLBACK_MESSAGE", "true"],
    ]


async def test_traces_name_groups_and_topics_without_their_namespace(cluster: ScriptedCluster) -> None:
    cluster.topics["shop%T"] = 1
    async with (
        connect(cluster.address, namespace="shop") as client,
        Tracer(client) as tracer,
        client.producer("P", hooks=[tracer]) as producer,
    ):
        await producer.send("T", b"x")
    [[_, _, _, group, topic, *_]] = records(cluster)
    assert (group, topic) == ("P", "T")


async def test_handlers_are_traced_before_and_after(cluster: ScriptedCluster, client: Client) -> None:
    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise RetryLater

    cluster.broker.put("T", 0, b"x", UNIQ_KEY="id-1", KEYS="k")
    cluster.broker.put("T", 0, b"untraced", TRACE_ON="false")
    async with (
        Tracer(client) as tracer,
        client.consumer("T", group="G", start="earliest", handler=handler, hooks=[tracer]) as consumer,
    ):
        await eventually(lambda: consumer.stats.acked == 2)
    traced = [record for record in records(cluster) if "id-1" in record]
    assert [record[0] for record in traced] == ["SubBefore", "SubAfter", "SubBefore", "SubAfter"]
    before, after = traced[0], traced[1]
    assert before[3:] == ["G", before[4], "id-1", "0", "k"]
    assert after[1:3] == [before[4], "id-1"]  # one request id for the pair
    assert (after[4], after[5], after[6], after[8]) == ("false", "k", "4", "G")
    assert (traced[3][4], traced[3][6]) == ("true", "0")
    assert len(records(cluster)) == 4


async def test_a_trace_that_is_on_its_way_when_its_tracer_closes_arrives(
    cluster: ScriptedCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()
    tracer = await Tracer(client, every_seconds=0.01).start()
    send = tracer._producer.send_message

    async def send_slowly(message: Message) -> Receipt:
        began.set()
        await goes_on.wait()
        return await send(message)

    monkeypatch.setattr(tracer._producer, "send_message", send_slowly)
    async with client.producer("P", hooks=[tracer]) as producer:
        await producer.send("T", b"x")
    await began.wait()
    closing = asyncio.create_task(tracer.close())
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    assert [record[0] for record in records(cluster)] == ["Pub"]


async def test_a_key_that_is_not_quite_text_is_traced_as_it_is_sent(cluster: ScriptedCluster, client: Client) -> None:
    async with Tracer(client) as tracer, client.producer("P", hooks=[tracer]) as producer:
        await producer.send("T", b"x", keys="caf\udce9.txt")  # a file name that is no UTF-8, by os.fsdecode
    assert [record[7] for record in records(cluster)] == ["caf?.txt"]
    assert cluster.broker.queues["T", 0][0].keys == ["caf?.txt"]
    assert tracer.lost == 0


async def test_a_batch_of_traces_that_cannot_be_sent_ends_no_tracing(
    cluster: ScriptedCluster, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send, failures = Producer.send_message, [ZeroDivisionError(), asyncio.CancelledError()]

    async def fail_at_first(self: Producer, message: Message, **options: Any) -> Receipt:
        if message.topic == TRACE_TOPIC and failures:
            raise failures.pop()
        return await send(self, message, **options)

    monkeypatch.setattr(Producer, "send_message", fail_at_first)
    async with Tracer(client, batch_size=1) as tracer, client.producer("P", hooks=[tracer]) as producer:
        for _ in range(3):
            await producer.send("T", b"x")
    assert (tracer.lost, len(records(cluster))) == (2, 1)
    assert "1 message traces are lost: ZeroDivisionError()" in caplog.text


async def test_traces_are_lost_rather_than_waited_for(cluster: ScriptedCluster, client: Client) -> None:
    async with Tracer(client, max_waiting=2, batch_size=100) as tracer:
        async with client.producer("P", hooks=[tracer]) as producer:
            for _ in range(5):
                await producer.send("T", b"x")
        assert tracer.lost == 3
        cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.MESSAGE_ILLEGAL))
    assert tracer.lost == 5


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What OpenTelemetry's own SDK records, in a provider of this test's own."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    return exporter


async def test_spans_are_joined_through_the_message(
    cluster: ScriptedCluster, client: Client, spans: InMemorySpanExporter
) -> None:
    telemetry = OpenTelemetry()

    async def handler(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise ValueError("not today")

    async with client.producer("P", hooks=[telemetry]) as producer:
        receipt = await producer.send("T", b"x")
    async with client.consumer("T", group="G", start="earliest", handler=handler, hooks=[telemetry]) as consumer:
        await eventually(lambda: consumer.stats.acked == 1)
    sent, failed, handled = spans.get_finished_spans()
    assert [span.name for span in (sent, failed, handled)] == ["T publish", "T process", "T process"]
    assert [span.kind for span in (sent, failed, handled)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER]
    assert {span.context.trace_id for span in (sent, failed, handled) if span.context} == {sent.context.trace_id}
    assert [span.parent and span.parent.span_id for span in (failed, handled)] == [sent.context.span_id] * 2
    assert [span.status.status_code for span in (sent, failed, handled)] == [
        StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET,
    ]  # fmt: skip
    assert failed.events[0].name == "exception"
    assert sent.attributes is not None
    assert sent.attributes["messaging.message.id"] == receipt.message_id
    assert handled.attributes is not None
    assert handled.attributes["messaging.rocketmq.message.delivery_attempt"] == 2


async def test_a_hook_that_comes_while_a_send_is_on_its_way_does_no_harm(
    cluster: ScriptedCluster, client: Client, spans: InMemorySpanExporter
) -> None:
    async with client.producer("P", hooks=[SendHook()]) as producer:
        sending = asyncio.create_task(producer.send("T", b"x"))
        await asyncio.sleep(0)
        producer.add_hook(OpenTelemetry())
        assert (await sending).message_id
    assert spans.get_finished_spans() == ()


async def test_a_tracer_that_closes_does_not_wait_for_its_broker_batch_by_batch(
    cluster: ScriptedCluster, client: Client
) -> None:
    async with client.producer("P") as producer:
        async with Tracer(client, batch_size=3) as tracer:
            producer.add_hook(tracer)
            for _ in range(2):
                await producer.send("T", b"x")
            tracer._batch_size = 1
            cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.MESSAGE_ILLEGAL), times=2)
        assert tracer.lost == 2
    assert len(cluster.broker.received(RequestCode.SEND_MESSAGE_V2)) == 3  # one of them traces


async def test_one_way_sends_leave_no_traces(cluster: ScriptedCluster, client: Client) -> None:
    """As Java's: nobody knows what became of them."""
    async with Tracer(client) as tracer, client.producer("P", hooks=[tracer]) as producer:
        await producer.send_oneway("T", b"x")
    assert cluster.broker.queues[TRACE_TOPIC, 0] == []


def test_without_the_package_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError) as caught:
        OpenTelemetry()
    assert "pip install" in caught.value.hint
