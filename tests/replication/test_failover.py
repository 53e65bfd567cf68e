"""Real processes: a master is killed for good. What it stored is read from its slave, and producers go on with other masters."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import orbitmq as mq
from tests.interop import orbit, wire
from tests.interop.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.interop.apache import Broker

PATIENCE_SECONDS = 60.0
UPDATE_TOPIC = 17
MASTER: dict[str, str | int] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveReadEnable": "true"}
SLAVE: dict[str, str | int] = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}


class Cluster:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports: dict[Path, int] = {}
        server = orbit.start_name_server(folder / "names")
        stack.callback(server.process.kill)
        self.name_server = server.address

    def broker(self, name: str, settings: dict[str, str | int]) -> Broker:
        """Started again, it is where it was."""
        folder = self._folder / f"{name}-{settings.get('brokerId', 0)}"
        port = self._ports.setdefault(folder, free_port(-2, 1))
        files: dict[str, str | int] = {"mappedFileSizeCommitLog": 1 << 20, "listenPort": port}
        broker = orbit.start_broker(folder, self.name_server, name, {**files, **settings}, port)
        self._stack.callback(broker.process.kill)
        return broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def acknowledged(producer: mq.Producer, text: str) -> mq.Receipt:
    """Sent again until it is on master and slave: which of the two copies is read later must not matter."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            receipt = await producer.send("T", text.encode(), keys=[text])
            if receipt.status is mq.SendStatus.STORED:
                return receipt
            await asyncio.sleep(0.1)


async def test_a_master_killed_for_good(cluster: Cluster) -> None:
    first = cluster.broker("a", MASTER)
    cluster.broker("a", SLAVE)
    second = cluster.broker("b", MASTER)
    cluster.broker("b", SLAVE)
    for master in (first, second):
        topic = {
            "topic": "T",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        assert wire.ask(master.address, UPDATE_TOPIC, topic).code == 0
    async with mq.connect(cluster.name_server) as client, client.producer(group="P") as producer:
        sent: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(set(sent.values())) < 2 or len(sent) < 40:  # on both masters
                text = f"before-{len(sent)}"
                sent[text] = (await acknowledged(producer, text)).queue.broker_name
        first.process.kill()
        for number in range(20):
            receipt = await acknowledged(producer, f"after-{number}")
            assert receipt.queue.broker_name == "b"
            sent[f"after-{number}"] = "b"

        received: set[str] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with client.consumer("T", group="late", start="earliest") as consumer:
                async for message in consumer:
                    async with message.process():
                        received.add(message.body.decode())
                    if sent.keys() <= received:
                        break
        assert {name for name, broker in sent.items() if broker == "a"} <= received
