"""Where traces go, and how one is found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.kit import QUERY_MESSAGE, messages_of, running, wire

if TYPE_CHECKING:
    from pathlib import Path

TRACES, DELETE_TOPIC = "RMQ_SYS_TRACE_TOPIC", 215


async def test_the_trace_topic_is_there_if_asked_for_and_is_the_brokers_own(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as broker:
        assert broker.state.topics.get(TRACES) is None
    async with running(tmp_path / "b", traceTopicEnable="true") as broker, wire(broker) as client:
        config = broker.state.topics.get(TRACES)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        assert broker.state.topics.is_system(TRACES)
        assert (await client.ask(DELETE_TOPIC, {"topic": TRACES})).code == 29


async def test_traces_may_have_a_topic_of_another_name(tmp_path: Path) -> None:
    changes = {"traceTopicEnable": "true", "msgTraceTopicName": "Traces"}
    async with running(tmp_path, clock=None, disk=None, **changes) as broker:
        assert broker.state.topics.get("Traces") is not None
        assert broker.state.topics.is_system("Traces")


async def test_a_trace_is_found_by_the_id_of_its_message(tmp_path: Path) -> None:
    async with running(tmp_path, traceTopicEnable="true") as broker, wire(broker) as client:
        sent = await client.send("T", b"x", KEYS="order-7")
        assert sent.fields["TRACE_ON"] == "true"
        unique_key = sent.fields["transactionId"]
        await client.send(TRACES, b"Pub\x01...", KEYS=f"{unique_key} order-7")

        for key in (unique_key, "order-7"):
            header = {"topic": TRACES, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
            assert [m.body for m in messages_of(await client.ask(QUERY_MESSAGE, header))] == [b"Pub\x01..."]


async def test_clients_are_told_not_to_trace(tmp_path: Path) -> None:
    async with running(tmp_path, traceOn="false") as broker, wire(broker) as client:
        assert (await client.send("T", b"x")).fields["TRACE_ON"] == "false"
        (message,) = await client.messages("T")
        assert message.properties["TRACE_ON"] == "false"
