"""What Prometheus and probes get to see."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import ConfigError, StoreFull
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from tests.broker.kit import HEART_BEAT, SEND_BACK, SEND_V2, Wire, running, wire
from tests.broker.lease_kit import LeaseClient
from tests.raw_client import until
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.transport.address import Address

SAMPLE = re.compile(r"(\w+)\{(.*)\} ([0-9.e-]+)")


async def fetch(address: Address | None, path: str) -> tuple[int, str]:
    assert address is not None
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def scrape(broker: Broker) -> dict[str, list[tuple[dict[str, str], float]]]:
    status, text = await fetch(broker.metrics_address, "/metrics")
    assert status == 200
    families: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2]))
        assert (labels.pop("cluster"), labels.pop("node_type"), labels.pop("node_id")) == (
            "DefaultCluster",
            "broker",
            "broker-a",
        )
        families.setdefault(sample[1], []).append((labels, float(sample[3])))
    return families


def no_room(*arguments: object) -> object:
    raise StoreFull("no room", code=14)


def exporting(**changes: object) -> dict[str, Any]:
    return {"metricsExporterType": "PROM", "metricsPromExporterPort": 0, **changes}


async def test_nothing_is_exported_unless_asked_for(broker: Broker) -> None:
    assert broker.metrics_address is None


async def test_messages_and_bytes_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        for _ in range(3):
            await client.send("T", b"x" * 100)
        await client.bodies("T")
        families = await scrape(broker)
        assert families["rocketmq_messages_in_total"] == [
            ({"topic": "T", "message_type": "normal", "is_system": "false"}, 3)
        ]
        ((labels, count),) = families["rocketmq_messages_out_total"]
        assert labels == {"topic": "T", "consumer_group": "G", "is_system": "false"}
        assert count == 3
        ((_, stored),) = families["rocketmq_throughput_in_total"]
        ((_, sent),) = families["rocketmq_throughput_out_total"]
        assert stored == sent == broker.state.store.log.end
        assert families["rocketmq_broker_permission"] == [({}, 6)]
        assert families["rocketmq_topic_number"] == [({}, len(broker.state.topics.all()))]
        storage = {"storage_type": "local", "storage_medium": "disk"}
        assert families["rocketmq_storage_size_bytes"] == [(storage, stored)]


async def test_connections_are_counted_by_who_they_are(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        assert "rocketmq_producer_connections" not in await scrape(broker)
        beat = {
            "clientID": "client-1",
            "consumerDataSet": [{"groupName": "G", "consumeType": "CONSUME_ACTIVELY"}],
            "producerDataSet": [{"groupName": "P"}, {"groupName": "Q"}],
        }
        await client.ask(HEART_BEAT, body=json.dumps(beat).encode(), version=407)
        families = await scrape(broker)
        software = {"language": "python", "version": "v4_9_7", "protocol_type": "remoting"}
        assert families["rocketmq_producer_connections"] == [(software, 2)]
        ((labels, count),) = families["rocketmq_consumer_connections"]
        assert labels == {**software, "consumer_group": "G", "consume_mode": "pull", "is_system": "false"}
        assert count == 1


async def test_lag_is_what_a_group_has_not_consumed(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        for number in range(5):
            await client.send("T", b"%d" % number)
        await client.pull("T", 0, 1, max_msg_nums=2)
        broker.state.offsets.commit("G", "T", 0, 1)
        families = await scrape(broker)
        figures = {
            name.removeprefix("rocketmq_consumer_"): samples[0][1]
            for name, samples in families.items()
            if name.startswith("rocketmq_consumer_") and samples[0][0].get("topic") == "T"
        }
        assert (figures["lag_messages"], figures["inflight_messages"], figures["ready_messages"]) == (4, 2, 2)
        assert 0 <= figures["queueing_latency_milliseconds"] <= figures["lag_latency_milliseconds"] < 60_000
        broker.state.offsets.commit("G", "T", 0, 5)
        families = await scrape(broker)
        assert families["rocketmq_consumer_lag_messages"][0][1] == 0
        assert families["rocketmq_consumer_lag_latency_milliseconds"][0][1] == 0


async def test_messages_given_up_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        receipt = await client.send("T")
        await client.bodies("T")
        header = {"offset": int(receipt.fields["msgId"][-16:], 16), "group": "G", "delayLevel": -1, "originTopic": "T"}
        assert (await client.ask(SEND_BACK, header)).code == 0
        families = await scrape(broker)
        ((labels, count),) = families["rocketmq_send_to_dlq_messages_total"]
        assert (labels["consumer_group"], labels["topic"], count) == ("G", "T", 1)


async def test_sizes_of_messages_are_spread_between_apaches_bounds(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        for size in (100, 2000, 2000, 5000, 600_000):
            await client.send("T", bytes(size))
        batch = encode_batch([BatchMember(bytes(3000)), BatchMember(bytes(200))])  # on the average in between
        assert (await client.send("T", batch, header={"batch": True})).code == 0
        families = await scrape(broker)
        buckets = {labels["le"]: count for labels, count in families["rocketmq_message_size_bucket"]}
        assert buckets == {
            "1024.0": 1, "4096.0": 5, "524288.0": 6, "1048576.0": 7, "2097152.0": 7, "4194304.0": 7, "+Inf": 7,
        }  # fmt: skip
        assert families["rocketmq_message_size_count"] == families["rocketmq_messages_in_total"]
        assert families["rocketmq_message_size_sum"] == families["rocketmq_throughput_in_total"]
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert "rocketmq_message_size_count" not in await scrape(broker)


async def latencies(broker: Broker) -> dict[tuple[str, str, str, str], float]:
    """How many requests were timed, by code, answer, result, and whether they were held."""
    families = await scrape(broker)
    labels = ("request_code", "response_code", "result", "is_long_polling")
    found = {}
    for sample, count in families["rocketmq_rpc_latency_milliseconds_count"]:
        assert sample["protocol_type"] == "remoting"
        same = [
            value
            for other, value in families["rocketmq_rpc_latency_milliseconds_bucket"]
            if sample.items() <= other.items()
        ]
        assert same == sorted(same)
        assert (len(same), same[-1]) == (10, count)
        found[tuple(sample[label] for label in labels)] = count
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_every_request_is_timed_whichever_way_it_goes(tmp_path: Path, flush: str) -> None:
    async with running(tmp_path, **exporting(flushDiskType=flush)) as broker, wire(broker) as client:
        for _ in range(3):  # the first creates the topic and goes the ordinary way
            await client.send("T", b"x")
        await client.ask(77, {"no": "such code"})
        await client.bodies("T")
        held = await client.hold("T", 0, 3)
        await client.send("T", b"x")
        assert (await held).code == 0
        timed_out = await client.hold("T", 0, 4, suspend_timeout_millis=1)
        assert (await timed_out).code == 19
        await (await client.connection()).call(Command(SEND_V2, fields={"no": "field"}), 20.0)
        counts = await latencies(broker)
        assert counts["send_message_v2", "success", "success", "false"] == 4
        assert counts["send_message_v2", "invalid_parameter", "success", "false"] == 1
        assert counts["pull_message", "success", "success", "false"] == 1
        assert counts["pull_message", "success", "success", "true"] == 1
        assert counts["pull_message", "pull_not_found", "success", "true"] == 1
        assert not [key for key in counts if key[0] == "77"]  # whoever invents codes fills no memory
        families = await scrape(broker)
        marks = {labels["processor"]: waiting for labels, waiting in families["rocketmq_processor_watermark"]}
        assert len(marks) == 12
        assert set(marks.values()) == {0}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_acks_and_ends_of_transactions_are_timed_whichever_way_they_go(
    tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **exporting(flushDiskType=flush)) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        for _ in range(3):
            await client.send("T", b"x")
        leased = await consumer.pop("T")
        for each in (*leased[:2], leased[0]):  # said twice, there is nothing to write
            assert (await consumer.ack(each)).code == 0
        assert (await consumer.ack(leased[2], offset=1000)).code != 0  # left to the ordinary way
        with monkeypatch.context() as patch:
            patch.setattr(broker.state.store, "append", no_room)
            assert (await consumer.ack(leased[2])).code == 14
        halves = [await client.send("Pay", TRAN_MSG="true", PGROUP="P") for _ in range(3)]
        ends = [
            {
                "producerGroup": "P",
                "tranStateTableOffset": half.fields["queueOffset"],
                "commitLogOffset": int(half.fields["msgId"][-16:], 16),
                "commitOrRollback": decision,
                "msgId": "x",
            }
            for half, decision in zip(halves, (8, 12, 8), strict=True)
        ]
        for end in ends[:2]:
            assert (await client.ask(RequestCode.END_TRANSACTION, end)).code == 0
        fields = {name: str(value) for name, value in ends[2].items()}
        (await client.connection()).notify(Command(RequestCode.END_TRANSACTION, fields=fields))
        await until(lambda: not len(broker.state.half_messages), what="the commit")
        await client.send("T", b"x")  # behind it, so that its time is noted
        counts = await latencies(broker)
        assert counts["ack_message", "success", "success", "false"] == 3
        assert sum(count for key, count in counts.items() if key[0] == "ack_message") == 5
        assert counts["end_transaction", "success", "success", "false"] == 2
        assert counts["end_transaction", "success", "oneway", "false"] == 1


async def test_what_waits_for_the_disk_shows_as_a_watermark(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting(flushDiskType="SYNC_FLUSH", syncFlushTimeout=3_600_000)) as broker:
        broker.state.durability.tell(broker.state.store.log.end + 1, lambda verdict: None)
        families = await scrape(broker)
        marks = {labels["processor"]: waiting for labels, waiting in families["rocketmq_processor_watermark"]}
        assert (marks["send"], marks["pull"]) == (1, 0)


async def test_what_operators_waited_for_is_spread(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        topic = {"defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": "false"}
        topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T", **topic})).code == 0
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "TBW102", **topic})).code != 0
        body = json.dumps({"groupName": "G"}).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        families = await scrape(broker)
        topics = families["rocketmq_topic_create_execution_time_milliseconds_count"]
        assert ({"invocation_status": "success", "is_system": "false"}, 1) in topics
        assert ({"invocation_status": "failure", "is_system": "true"}, 1) in topics
        groups = families["rocketmq_consumer_group_create_execution_time_milliseconds_count"]
        assert groups == [({"invocation_status": "success"}, 1)]


async def test_transactions_are_counted_by_the_topic_they_are_for(tmp_path: Path) -> None:
    async with running(tmp_path, **exporting()) as broker, wire(broker) as client:
        receipts = [await client.send("Pay", TRAN_MSG="true", PGROUP="P") for _ in range(3)]
        assert (await scrape(broker))["rocketmq_half_messages"] == [({"topic": "Pay"}, 3)]
        for receipt, decision in zip(receipts, (8, 12), strict=False):
            header = {
                "producerGroup": "P",
                "tranStateTableOffset": receipt.fields["queueOffset"],
                "commitLogOffset": int(receipt.fields["msgId"][-16:], 16),
                "commitOrRollback": decision,
                "fromTransactionCheck": "false",
                "msgId": "x",
            }
            assert (await client.ask(RequestCode.END_TRANSACTION, header)).code == 0
        families = await scrape(broker)
        for name, count in (("half_messages", 1), ("commit_messages_total", 1), ("rollback_messages_total", 1)):
            assert families[f"rocketmq_{name}"] == [({"topic": "Pay"}, count)]
        assert families["rocketmq_finish_message_latency_milliseconds_count"] == [({"topic": "Pay"}, 1)]


async def test_probes(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.faults.used_percent = 10
    changes = exporting(cleanResourceInterval=20)
    async with running(tmp_path, disk=disk, **changes) as broker:
        assert await fetch(broker.metrics_address, "/healthz") == (200, "ok\n")
        assert await fetch(broker.metrics_address, "/readyz?verbose") == (200, "ok\n")
        disk.faults.used_percent = 95
        await until(lambda: broker.state.store.health.refuses_writes, what="the disk found full")
        status, text = await fetch(broker.metrics_address, "/readyz")
        assert status == 503
        assert "95% full" in text
        assert (await fetch(broker.metrics_address, "/healthz"))[0] == 200


async def test_a_port_that_is_taken_is_named_and_the_store_is_given_back(tmp_path: Path) -> None:
    async with running(tmp_path / "a", **exporting()) as broker:
        assert broker.metrics_address is not None
        port = broker.metrics_address.port
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} is in use"):
            async with running(tmp_path / "b", **exporting(metricsPromExporterPort=port)):
                pass
    async with running(tmp_path / "b") as second, wire(second) as client:
        assert isinstance(client, Wire)


async def test_delays_that_timers_ask_for_are_spread_over_buckets_as_in_java(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    async with running(tmp_path, clock=ManualClock(now_ms), **exporting()) as broker, wire(broker) as client:
        for seconds in (30, 31, 700, 100_000):
            born = {"born_timestamp": now_ms}
            assert (await client.send("T", TIMER_DELAY_SEC=str(seconds), header=born)).code == 0
        timers = broker.state.timers
        assert timers is not None
        await until(lambda: timers.counts.total() == 4, what="putting on the wheel")
        families = await scrape(broker)
    disk = {"storage_type": "local", "storage_medium": "disk", "topic": "T"}
    assert families["rocketmq_timing_messages"] == [(disk, 4)]
    assert [value for _, value in families["rocketmq_timer_enqueue_latency_milliseconds"]] == [0]
    buckets = {labels["le"]: value for labels, value in families["rocketmq_delay_message_latency_seconds_bucket"]}
    assert buckets == {"60.0": 2, "600.0": 2, "3600.0": 3, "43200.0": 3, "86400.0": 3, "259200.0": 4, "+Inf": 4}
    assert families["rocketmq_delay_message_latency_seconds_count"] == [(disk, 4)]
    assert families["rocketmq_delay_message_latency_seconds_sum"] == [(disk, 29 + 30 + 699 + 99_999)]
