"""What a broker still knows after it was stopped, or killed, and started again."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.errors import ConfigError, TransportError
from orbitmq.transport.address import Address, parse_address
from orbitmq.transport.network import TcpNetwork
from tests.broker.kit import QUERY_OFFSET, UPDATE_OFFSET, Wire, configuration, running, wire
from tests.interop.processes import Process, free_port, killed_on_failure
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orbitmq.transport.network import Listener


async def test_topics_groups_offsets_and_messages_survive_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        await client.send("T", b"one", 3, header={"default_topic_queue_nums": 5})
        await client.heartbeat("c1", "G", {"T": "*"})
        await client.ask(UPDATE_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 3, "commitOffset": 1})
    async with running(tmp_path, autoCreateTopicEnable="false") as broker, wire(broker) as client:
        assert broker.state.topics.require("T").write_queue_nums == 5
        assert broker.state.topics.get("%RETRY%G") is not None
        assert broker.state.groups.get("G") is not None
        stored = await client.ask(QUERY_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 3})
        assert stored.fields["offset"] == "1"
        assert await client.bodies("T", 3) == [b"one"]
        assert (await client.send("T", b"two", 3)).fields["queueOffset"] == "1"


async def test_every_topic_and_group_reaches_the_disk_by_itself_however_fast_they_come(tmp_path: Path) -> None:
    """A kill a moment later must not forget a topic whose messages were acknowledged."""
    async with running(tmp_path) as broker, wire(broker) as client:
        wanted = set()
        for i in range(60):
            await client.send(f"T{i}")
            await client.heartbeat("c1", f"G{i}")
            wanted |= {f"T{i}", f"%RETRY%G{i}"}

        def saved(file: str, table: str) -> set[str]:
            try:
                return set(json.loads((tmp_path / "config" / file).read_text())[table])
            except FileNotFoundError:  # for a moment, while one version takes the other's place
                return set()

        await until(lambda: wanted <= saved("topics.json", "topicConfigTable"), what="all topics saved")
        groups = {f"G{i}" for i in range(60)}
        await until(
            lambda: groups <= saved("subscriptionGroup.json", "subscriptionGroupTable"), what="all groups saved"
        )


async def test_a_client_quicker_than_the_start_is_heard(tmp_path: Path) -> None:
    """The first port is open while the second is being opened, and clients of the last run are waiting."""

    class ImpatientClient(TcpNetwork):
        ports = 0

        async def listen(
            self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
        ) -> Listener:
            self.ports += 1
            if self.ports == 3:  # one for slaves, the first, the second
                early = Wire(Address("127.0.0.1", port + 2))
                assert (await early.send("T", b"early")).code == 0
                await early.close()
            return await super().listen(accept, host, port, backlog)

    network = ImpatientClient()
    async with Broker(configuration(tmp_path), network=network) as broker, wire(broker) as client:
        assert network.ports == 3
        assert await client.bodies("T") == [b"early"]
        assert (await client.send("T", b"late")).code == 0
        assert await client.bodies("T") == [b"early", b"late"]


async def test_a_start_that_fails_gives_ports_and_store_back(tmp_path: Path) -> None:
    port = free_port(-2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = {"metricsExporterType": "PROM", "metricsPromExporterPort": taken.getsockname()[1]}
        with pytest.raises(ConfigError, match="in use"):
            await Broker(configuration(tmp_path, {"listenPort": port, **metrics})).start()
    async with running(tmp_path, listenPort=port) as broker, wire(broker) as client:
        assert (await client.send("T")).code == 0


def start_process(folder: Path) -> tuple[Process, Address]:
    """A broker as a user starts it."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "orbitmq", "broker", "--host", "127.0.0.1", "--port", "0", "-n", ""]
    command += ["--store", str(folder / "store"), "--set", "mappedFileSizeCommitLog=1048576"]
    log = folder / f"broker-{random.getrandbits(32)}.out"
    process = Process(command, log, {"HOME": str(folder)})
    with killed_on_failure(process):
        return process, parse_address(process.wait_for_line(" ready on ").split(" ready on ", 1)[1].strip())


async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    acknowledged: dict[bytes, tuple[int, int]] = {}
    for life in range(3):
        process, address = await asyncio.to_thread(start_process, tmp_path)
        try:
            client = Wire(address)
            await check(client, acknowledged)
            senders = [asyncio.create_task(send_until_lost(client, life, i, acknowledged)) for i in range(8)]
            await until(lambda: len(acknowledged) > (life + 1) * 500, what="enough sent")  # noqa: B023 - awaited here
            process.kill()
            await asyncio.gather(*senders)
            await client.close()
        finally:
            process.kill()
    process, address = await asyncio.to_thread(start_process, tmp_path)
    try:
        client = Wire(address)
        await check(client, acknowledged)
        await client.close()
        assert await asyncio.to_thread(process.stop) == 0
    finally:
        process.kill()


async def send_until_lost(client: Wire, life: int, sender: int, acknowledged: dict[bytes, tuple[int, int]]) -> None:
    connection = await client.connection()
    number = 0
    while not connection.closed:
        body = b"%d-%d-%d " % (life, sender, number) + b"x" * 500
        try:
            answer = await client.send(f"T{sender % 3}", body, sender % 4)
        except TransportError:
            return
        assert answer.code == 0
        acknowledged[body] = (int(answer.fields["queueId"]), int(answer.fields["queueOffset"]))
        number += 1


async def check(client: Wire, acknowledged: dict[bytes, tuple[int, int]]) -> None:
    found: dict[bytes, tuple[int, int]] = {}
    if acknowledged:
        for topic in range(3):
            for queue_id in range(4):
                messages = await client.messages(f"T{topic}", queue_id)
                assert [message.queue_offset for message in messages] == list(range(len(messages)))
                found |= {message.body: (message.queue_id, message.queue_offset) for message in messages}
    assert acknowledged.items() <= found.items()
