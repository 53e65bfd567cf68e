"""Brokers that come, fall silent, break off or change places, and who hears of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.clock import ManualClock
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.nameserver import MinBrokerIdChanged
from orbitmq.transport.server import Server
from tests.nameserver.running import addresses, register, registration_fields, route, running, topic_table
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


async def test_a_lost_connection_takes_its_broker_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as client:
        async with raw_client(server.address) as broker:
            await register(broker)
            assert addresses(await route(client, "TopicA")) == {"broker-a": {0: A}}
        await until(lambda: not server.registry.topics())
        assert await route(client, "TopicA") is None


async def test_a_connection_that_carried_many_brokers_takes_them_all(tmp_path: Path) -> None:
    async with running(tmp_path, unRegisterBrokerQueueCapacity=1) as server, raw_client(server.address) as client:
        async with raw_client(server.address) as brokers:
            for i in range(5):
                await register(brokers, f"b{i}", address=f"10.0.1.{i}:1")
            assert len(addresses(await route(client, "TopicA"))) == 5
        await until(lambda: not server.registry.topics())


async def test_a_client_that_leaves_takes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as broker:
        await register(broker)
        async with raw_client(server.address) as client:
            assert addresses(await route(client, "TopicA")) != {}
        assert addresses(await route(broker, "TopicA")) != {}


async def test_a_broker_that_reconnects_survives_the_loss_of_its_old_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as new:
        async with raw_client(server.address) as old:
            await register(old)
            await register(new)
        await until(lambda: len(server._server.connections) == 1)
        assert addresses(await route(new, "TopicA")) == {"broker-a": {0: A}}


async def test_a_frozen_broker_is_gone_after_two_minutes_and_its_connection_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with (
        running(tmp_path, clock=clock) as server,
        raw_client(server.address) as client,
        raw_client(server.address) as broker,
    ):
        await register(broker)
        clock.advance(minutes=2)
        server.expire_silent_brokers()
        assert addresses(await route(client, "TopicA")) != {}
        clock.advance(ms=1)
        server.expire_silent_brokers()
        assert await broker.is_closed_by_the_server()
        assert await route(client, "TopicA") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"broker at {A} of cluster-1 fell silent: its routes are gone"
    ]


async def test_a_broker_may_ask_for_a_shorter_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as server, raw_client(server.address) as broker:
        await register(broker, heartbeatTimeoutMillis="10000")
        clock.advance(ms=10_001)
        server.expire_silent_brokers()
        assert await broker.is_closed_by_the_server()


async def test_the_scan_runs_by_itself_and_survives_any_number_of_losses(tmp_path: Path) -> None:
    times = {"scanNotActiveBrokerInterval": 10, "orbitmq.brokerSilentMillis": 100, "unRegisterBrokerQueueCapacity": 1}
    async with running(tmp_path, clock=None, **times) as server, raw_client(server.address) as client:
        for _ in range(2):
            async with raw_client(server.address) as brokers:
                for i in range(3):
                    await register(brokers, f"b{i}", address=f"10.0.1.{i}:1")
                await until(lambda: not server.registry.topics(), what="the expiry")
        assert await route(client, "TopicA") is None


async def test_for_a_while_after_the_start_routes_are_not_ready(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, needWaitForService=True) as server, raw_client(server.address) as client:
        await register(client)
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
        assert (answer.code, answer.remark) == (1, "name server not ready")
        clock.advance(seconds=44.999)
        assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})).code == 1
        clock.advance(ms=1)
        assert addresses(await route(client, "TopicA")) != {}


async def test_an_acting_master_is_shown_once_the_master_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, supportActingMaster=True) as server, raw_client(server.address) as slave:
        async with raw_client(server.address) as master:
            await register(master, enableActingMaster="true")
            await register(slave, broker_id=1, address=B, enableActingMaster="true")
            assert addresses(await route(slave, "TopicA")) == {"broker-a": {0: A, 1: B}}
        await until(lambda: server.registry.members("cluster-1", "broker-a").broker_addrs == {1: B})
        found = await route(slave, "TopicA")
        assert addresses(found) == {"broker-a": {0: B}}
        assert found is not None
        assert found.queue_datas[0].perm == 4


# ---- who hears of a new first broker


class PretendBroker:
    """Listens as a broker does, and notes what the name server tells it."""

    def __init__(self) -> None:
        self.heard: list[MinBrokerIdChanged] = []
        self.address = ""

    async def note(self, request: Command, connection: Connection) -> Command:
        assert request.is_oneway
        self.heard.append(request.read(MinBrokerIdChanged))
        return commands.ok()


@asynccontextmanager
async def pretend_broker() -> AsyncIterator[PretendBroker]:
    broker = PretendBroker()
    server = Server({RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: broker.note})
    broker.address = str(await server.start("127.0.0.1", 0))
    try:
        yield broker
    finally:
        await server.stop()


async def test_replicas_hear_that_the_first_broker_changed(tmp_path: Path) -> None:
    async with (
        running(tmp_path, notifyMinBrokerIdChanged=True) as server,
        pretend_broker() as slave,
        raw_client(server.address) as line,
    ):
        await register(line, broker_id=1, address=slave.address, enableActingMaster="true")
        async with raw_client(server.address) as master:
            await register(master, address=A, enableActingMaster="true")
            await until(lambda: slave.heard)
        await until(lambda: len(slave.heard) == 2)
        assert slave.heard == [
            MinBrokerIdChanged(min_broker_id=0, min_broker_addr=A, ha_broker_addr="10.0.0.1:10912"),
            MinBrokerIdChanged(min_broker_id=1, min_broker_addr=slave.address, offline_broker_addr=A),
        ]


async def test_nobody_is_told_unless_it_is_wished(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pretend_broker() as slave, raw_client(server.address) as line:
        await register(line, broker_id=1, address=slave.address, enableActingMaster="true")
        await register(line, address=A, enableActingMaster="true")
        await route(line, "TopicA")
        assert slave.heard == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no address at all", "x" * 80 + ".example:1"])
async def test_a_replica_that_cannot_be_told_is_one_line_in_the_log(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path, notifyMinBrokerIdChanged=True) as server,
        raw_client(server.address) as line,
    ):
        await register(line, broker_id=1, address=address, enableActingMaster="true")
        await register(line, address=A, enableActingMaster="true")
        await until(lambda: caplog.records)
        assert addresses(await route(line, "TopicA")) != {}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


# ---- other name servers


async def test_three_name_servers_know_the_same_and_each_is_enough(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(tmp_path / str(i))) for i in range(3)]
        lines = [await stack.enter_async_context(raw_client(server.address)) for server in servers]
        for line in lines:
            await register(line)
        for gone in (0, 1):
            await servers[gone].stop()
            for server in servers[gone + 1 :]:
                async with raw_client(server.address) as client:
                    assert addresses(await route(client, "TopicA")) == {"broker-a": {0: A}}


async def test_in_cluster_test_mode_unknown_routes_come_from_the_other_cluster(tmp_path: Path) -> None:
    async with running(tmp_path / "other") as other, raw_client(other.address) as broker:
        await register(broker, topics=topic_table("Theirs", "More"))
        asks = {"clusterTest": True, "orbitmq.clusterTestNamesrvAddr": f"127.0.0.1:1;{other.address}"}
        async with running(tmp_path / "test", clock=None, **asks) as server, raw_client(server.address) as client:
            await register(client, "local", topics=topic_table("Ours", "AlsoOurs"))
            assert addresses(await route(client, "Ours")) == {"local": {0: A}}
            assert addresses(await route(client, "Theirs")) == {"broker-a": {0: A}}
            assert await route(client, "Nobodys") is None


@pytest.mark.parametrize(
    "other", [{"orbitmq.clusterTestNamesrvAddr": "127.0.0.1:1"}, {"productEnvName": "with space"}, {}], ids=str
)
async def test_when_the_other_cluster_cannot_be_asked_there_is_no_route(
    other: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", "127.0.0.1:1")
    async with running(tmp_path, clock=None, clusterTest=True, **other) as server, raw_client(server.address) as client:
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Theirs"})
        assert answer.code == 17
        assert "the other cluster cannot be asked" in (answer.remark or "")
    assert caplog.records == []


# ---- the end


async def test_stopping_is_no_loss_of_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, notifyMinBrokerIdChanged=True) as server:
        async with AsyncExitStack() as stack:
            for broker_id in (0, 1):
                line = await stack.enter_async_context(raw_client(server.address))
                await register(line, broker_id=broker_id, address=(A, B)[broker_id], enableActingMaster="true")
            await server.stop()
        await asyncio.sleep(0)
    assert caplog.records == []


async def test_the_state_is_printed_to_the_log_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orbitmq.nameserver.server._FIRST_REPORT_SECONDS", 0.01)
    caplog.set_level("INFO")
    async with running(tmp_path) as server, raw_client(server.address) as client:
        await register(client)
        await until(lambda: "connections" in caplog.text)
    assert "kept settings: none" in caplog.text


async def test_unregistration_by_request_needs_all_its_fields(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as client:
        fields = registration_fields()
        del fields["brokerId"]
        answer = await client.ask(RequestCode.UNREGISTER_BROKER, fields)
        assert answer.code == 29
        assert "brokerId" in (answer.remark or "")
