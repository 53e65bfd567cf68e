"""Two small clusters in the same state, one with Apache's broker and one with ours, each with a name server of its own."""

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop import apache, orbit
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.drivers import JavaClient, MqAdmin
from tests.interop.java import JavaBuild
from tests.interop.processes import free_port

CLUSTER: Final = "cluster-a"
LABELS: Final = ("one", "two")  # of equal length, so that columns stay where they are


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster; `label` stands in names that must not be the same on both sides."""

    label: str
    name_server: str
    broker: Broker
    folder: Path
    metrics_port: int
    last_receipt: Mapping[str, str]
    consumer: str

    def words(self) -> dict[str, str]:
        """What the placeholders of commands mean on this side."""
        return {
            "broker": self.broker.address,
            "folder": str(self.folder),
            "offset_id": self.last_receipt["offsetId"],
            "unique_key": self.last_receipt["id"],
            "consumer": self.consumer,
        }

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=20) as page:
            text: str = page.read().decode()
        return text


@contextmanager
def running_twins(folder: Path, java: JavaBuild, admin: MqAdmin) -> Iterator[tuple[Side, Side]]:
    """Apache's side, then ours."""
    with ExitStack() as stack:
        servers = [orbit.start_name_server(folder / f"nameserver-{label}") for label in LABELS]
        for server in servers:
            stack.callback(server.process.kill)
        ports = [free_port(), free_port()]
        common: dict[str, str | int] = {
            **apache.SELDOM_SAVED,
            "traceTopicEnable": "true",
            "mappedFileSizeCommitLog": 16 << 20,
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": "127.0.0.1",
        }
        settings = {**common, "metricsPromExporterPort": ports[0]}
        plan = BrokerPlan(name="broker-a", cluster=CLUSTER, name_servers=[servers[0].address], settings=settings)
        theirs = apache.start_broker(java, folder / "apache", plan)
        stack.callback(theirs.process.kill)
        sizes = {"mappedFileSizeConsumeQueue": 120_000, "maxIndexNum": 4000, "maxHashSlotNum": 1000}
        settings = {**common, **sizes, "metricsPromExporterPort": ports[1], "brokerClusterName": CLUSTER}
        ours = orbit.start_broker(folder / "orbit", servers[1].address, "broker-a", settings)
        stack.callback(ours.process.kill)
        client = JavaClient(java, folder / "client")
        stack.callback(client.close)
        sides = [
            _prepared(label, server.address, broker, folder / f"files-{label}", port, admin, client)
            for label, server, broker, port in zip(LABELS, servers, (theirs, ours), ports, strict=True)
        ]
        yield sides[0], sides[1]


def _prepared(
    label: str, name_server: str, broker: Broker, folder: Path, metrics_port: int, admin: MqAdmin, client: JavaClient
) -> Side:
    """The same topic, group, messages, producer and consumer on either side."""
    folder.mkdir()
    listed = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {"+message.type": "FIFO"}}
    (folder / "topics.json").write_text(json.dumps([{"topicName": "Listed", **listed}]))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "Listed", "retryMaxTimes": 5}]))
    admin.run("updateTopic", "-n", name_server, "-c", CLUSTER, "-t", "Orders", "-r", "4", "-w", "4")
    admin.run("updateSubGroup", "-n", name_server, "-c", CLUSTER, "-g", "Readers")
    producer, consumer = f"producer-{label}", f"consumer-{label}"
    options = {"instanceName": producer}
    client.call("OpenProducer", name=producer, nameServer=name_server, group="Writers", options=options)
    for key in "abcd":  # each to a queue of its own
        messages = [{"text": f"{key}{i}", "tag": "T", "keys": f"{key}{i}"} for i in range(3)]
        receipts = client.send(producer, "Orders", messages, order_key=key)
    client.open_push_consumer(
        consumer,
        name_server,
        "Orders",
        group="Readers",
        instanceName=consumer,
        consumeFromWhere="CONSUME_FROM_FIRST_OFFSET",
    )
    assert len(client.received(consumer, 12)) == 12
    connected = admin.run("consumerConnection", "-n", name_server, "-g", "Readers").out
    found = re.search(rf"\S+@\S*{label}\S*", connected)
    assert found is not None, connected
    return Side(label, name_server, broker, folder, metrics_port, receipts[-1], found[0])
