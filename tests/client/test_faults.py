"""What networks, servers and clocks do to clients; each fault by itself, on real sockets."""

import asyncio
import dataclasses
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from orbitmq import Client, ReceivedMessage, SendStatus, connect
from orbitmq.clock import ManualClock
from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.transport.connection import Connection
from orbitmq.transport.server import Server
from orbitmq.transport.tls import TlsMode, TlsSettings
from tests.client.scripted import ScriptedCluster, eventually, never_answer, scripted_cluster

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


async def reset_mid_frame(command: Command, connection: Connection) -> None:
    """The first bytes of an answer, then nothing: the process died while it wrote."""
    connection._transport.write(b"\x00\x00\x01\x00\x00\x00")
    await asyncio.sleep(0.005)
    connection.abort()


async def talk_nonsense(command: Command, connection: Connection) -> None:
    connection._transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def collecting(into: list[bytes]) -> Callable[[ReceivedMessage], Awaitable[None]]:
    async def handler(message: ReceivedMessage) -> None:
        into.append(message.body)

    return handler


@pytest.mark.parametrize("fault", [reset_mid_frame, talk_nonsense])
async def test_an_answer_that_is_cut_or_garbled_costs_an_attempt(cluster: ScriptedCluster, fault: object) -> None:
    async with connect(cluster.address) as client, client.producer("P") as producer:
        await producer.send("T", b"first")
        cluster.broker.inject(SEND, fault)  # type: ignore[arg-type]
        assert (await producer.send("T", b"second")).status is SendStatus.STORED
        assert producer.stats.retried == 1


async def test_consumers_come_back_after_a_reset_in_the_middle_of_a_pull(cluster: ScriptedCluster) -> None:
    seen: list[bytes] = []
    cluster.broker.inject(PULL, reset_mid_frame, times=2)
    cluster.broker.put("T", 0, b"a")
    cluster.broker.put("T", 1, b"b")
    async with (
        connect(cluster.address) as client,
        client.consumer("T", group="G", start="earliest", handler=collecting(seen)),
    ):
        await eventually(lambda: sorted(seen) == [b"a", b"b"], 10)


async def test_a_broker_that_moves_is_found_at_its_new_address(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P") as producer:
        await producer.send("T", b"before")
        await cluster.stop("broker-a")
        await cluster.start_broker(cluster.broker)  # another port; the name server knows
        assert (await producer.send("T", b"after")).status is SendStatus.STORED


async def test_a_broker_that_leaves_for_good_is_forgotten() -> None:
    async with scripted_cluster(brokers=2, topics={"T": 1}) as cluster:
        config = dataclasses.replace(connect(cluster.address).config, route_refresh_seconds=0.05)
        async with Client(config) as client, client.producer("P") as producer:
            await asyncio.gather(*(producer.send("T", b"x") for _ in range(4)))
            assert cluster.servers["broker-a"].connections
            cluster.offline.add("broker-a")
            await eventually(lambda: not cluster.servers["broker-a"].connections)
            receipts = [await producer.send("T", b"y") for _ in range(4)]
            assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


async def test_a_clock_that_jumps_changes_nothing(cluster: ScriptedCluster) -> None:
    clock = ManualClock()
    seen: list[bytes] = []
    config = dataclasses.replace(connect(cluster.address).config, clock=clock)
    async with (
        Client(config) as client,
        client.producer("P") as producer,
        client.consumer("T", group="G", start="earliest", handler=collecting(seen)),
    ):
        ids = set()
        for minutes in (0, 60 * 24 * 40, -60 * 24 * 80, 5):  # over the end of a month, and back over two
            clock.advance(minutes=minutes)
            ids.add((await producer.send("T", b"x")).message_id)
        await eventually(lambda: len(seen) == 4)
        assert len(ids) == 4


async def test_a_cancelled_send_leaves_nothing_behind(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P", max_in_flight=1) as producer:
        await producer.send("T", b"first")
        cluster.broker.inject(SEND, never_answer)
        stuck = asyncio.create_task(producer.send("T", b"stuck"))
        waiting = asyncio.create_task(producer.send("T", b"waiting"))
        await asyncio.sleep(0.02)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert (await waiting).status is SendStatus.STORED


async def test_every_failure_is_of_one_tree_with_code_and_hint(cluster: ScriptedCluster) -> None:
    async with connect("127.0.0.1:1") as client, client.producer("P") as producer:
        attempts = (
            producer.send("T", b"x"),
            producer.send("", b"x"),
            producer.send("T", b""),
            client.consumer("T", group="G").start(),
        )
        for attempt in attempts:
            with pytest.raises(OrbitError) as caught:
                await attempt
            assert isinstance(caught.value.code, int)
            assert caught.value.hint


async def test_tls_all_the_way(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = TlsSettings(mode=TlsMode.ENFORCING, certificate=tmp_path / "server.pem")
    async with scripted_cluster(topics={"T": 1}) as cluster:
        await cluster.stop("name server")
        await cluster.stop("broker-a")
        servers = [Server(cluster.broker.routes(), tls=settings), Server(cluster.name_server_routes(), tls=settings)]  # type: ignore[arg-type]
        cluster.broker.address = await servers[0].start("127.0.0.1", 0)
        name_server = await servers[1].start("127.0.0.1", 0)
        async with connect(str(name_server), tls=context) as client, client.producer("P") as producer:
            assert (await producer.send("T", b"secret")).status is SendStatus.STORED
            async with client.consumer("T", group="G", start="earliest") as consumer:
                assert (await anext(consumer)).body == b"secret"
        async with connect(str(name_server)) as client, client.producer("P") as producer:
            with pytest.raises(OrbitError):
                await producer.send("T", b"in the clear", timeout=0.5)
        for server in servers:
            await server.stop(grace_seconds=0.01)
