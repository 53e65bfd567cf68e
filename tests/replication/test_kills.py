"""Real processes under `kill -9`: what was acknowledged with a copy on the slave is on both, whoever was killed in between."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import orbitmq as mq
from orbitmq.errors import OrbitError
from orbitmq.message.record import decode_records
from tests.interop import wire
from tests.replication.test_failover import MASTER, PATIENCE_SECONDS, SLAVE, UPDATE_TOPIC, Cluster, cluster

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.apache import Broker

__all__ = ["cluster"]  # the fixture

ROUNDS = 5
PULL = 11


async def send_on(client: mq.Client, acknowledged: set[str], stopped: asyncio.Event) -> None:
    async with client.producer(group="P", timeout=2.0) as producer:
        number = 0
        while not stopped.is_set():
            number += 1
            try:
                receipt = await producer.send("T", f"{number}".encode())
            except OrbitError:
                await asyncio.sleep(0.05)
                continue
            if receipt.status is mq.SendStatus.STORED:
                acknowledged.add(f"{number}")


async def test_nothing_acknowledged_is_lost_however_often_either_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("ORBITMQ_SEED", "0")) or random.randrange(1 << 30)
    print(f"seed {seed}: ORBITMQ_SEED={seed} runs it again")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    brokers = {"master": cluster.broker("a", MASTER), "slave": cluster.broker("a", SLAVE)}
    topic = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    assert wire.ask(brokers["master"].address, UPDATE_TOPIC, topic).code == 0
    acknowledged: set[str] = set()
    stopped = asyncio.Event()
    async with mq.connect(cluster.name_server) as client:
        sending = asyncio.create_task(send_on(client, acknowledged, stopped))
        for _ in range(ROUNDS):
            await progress(acknowledged)
            victim = chance.choice(["master", "slave"])
            brokers[victim].process.kill()
            settings = MASTER if victim == "master" else SLAVE
            brokers[victim] = await asyncio.to_thread(cluster.broker, "a", settings)
        await progress(acknowledged)
        stopped.set()
        await sending
    for broker in brokers.values():
        missing = await until_all_are_served(broker, acknowledged)
        assert not missing, f"{broker.folder.name} lost {sorted(missing)[:10]}"
    for broker in (brokers["slave"], brokers["master"]):
        broker.process.stop()
    assert log_of(tmp_path / "a-0") == log_of(tmp_path / "a-1")


async def progress(acknowledged: set[str]) -> None:
    """Until more has been acknowledged: both are up, and connected."""
    before = len(acknowledged)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(acknowledged) < before + 50:
            await asyncio.sleep(0.02)


async def until_all_are_served(broker: Broker, wanted: set[str]) -> set[str]:
    """What is still missing when it does not get less any more."""
    missing = wanted
    for _ in range(100):
        missing = wanted - await asyncio.to_thread(served, broker.address)
        if not missing:
            break
        await asyncio.sleep(0.1)
    return missing


def served(address: str) -> set[str]:
    bodies: set[str] = set()
    offset = 0
    while True:
        fields = {
            "consumerGroup": "raw", "topic": "T", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        answer = wire.ask(address, PULL, fields)
        if answer.code != 0:
            return bodies
        bodies |= {message.body.decode() for message in decode_records(answer.body)}
        offset = int(answer.fields["nextBeginOffset"])


def log_of(folder: Path) -> bytes:
    files = sorted((folder / "store" / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")
