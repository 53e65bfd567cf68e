"""Limits: each refuses what is too much, names itself, is counted, and can be changed while the server runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.clock import ManualClock
from orbitmq.errors import ConfigError, OrbitError, RequestFailed
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver.server import NameServer
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.access import User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.doorman import counted_as
from orbitmq.transport.load_limits import LoadLimits, Refusals
from orbitmq.transport.pool import Pool
from orbitmq.transport.rates import PerMinute, Rates
from tests.access.test_matrix import GUARDED, ROOT
from tests.broker.kit import PATIENCE_SECONDS, SEND_V2, configuration, send_header
from tests.nameserver.running import write_settings
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

BUSY: Final = 2


class Served:
    """A broker or a name server, asked by a user who may everything."""

    def __init__(self, server: Broker | NameServer, clock: ManualClock) -> None:
        assert server.address is not None
        assert server.metrics_address is not None
        self.server, self.address, self.clock = server, server.address, clock
        self._metrics = server.metrics_address
        is_broker = isinstance(server, Broker)
        self.harmless = RequestCode.GET_BROKER_RUNTIME_INFO if is_broker else RequestCode.GET_BROKER_CLUSTER_INFO
        self._change = RequestCode.UPDATE_BROKER_CONFIG if is_broker else RequestCode.UPDATE_NAMESRV_CONFIG
        self._pool = Pool()

    async def ask(self, code: int | None = None, body: bytes = b"", pool: Pool | None = None) -> Command:
        request = Command(code or self.harmless, body=body)
        sign(request, ROOT)
        return await (pool or self._pool).call(self.address, request, PATIENCE_SECONDS)

    async def change(self, key: str, value: int) -> None:
        answer = await self.ask(self._change, f"{key}={value}\n".encode())
        assert answer.code == 0, answer.remark

    async def refused(self) -> dict[str, int]:
        """What the metrics page says."""
        async with raw_client(self._metrics) as client:
            client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            page = (await client.rest()).decode()
        lines = [line for line in page.splitlines() if line.startswith("orbitmq_refused_total")]
        return {line.split('limit="')[1].split('"')[0]: int(line.rpartition(" ")[2]) for line in lines}

    async def close(self) -> None:
        await self._pool.close()


@asynccontextmanager
async def served(kind: str, folder: Path, **changes: Any) -> AsyncIterator[Served]:
    clock = ManualClock()
    metrics = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0, "metricsPromExporterHost": "127.0.0.1"}
    settings = {**GUARDED, **metrics, **changes}
    server: Broker | NameServer
    if kind == "broker":
        server = Broker(configuration(folder, settings), clock=clock)
    else:
        server = NameServer(nameserver_settings.load(write_settings(folder, **settings)), clock=clock)
    async with server:
        served = Served(server, clock)
        try:
            yield served
        finally:
            await served.close()


BOTH = pytest.mark.parametrize("kind", ["broker", "name server"])


@BOTH
async def test_one_connection_too_many_is_told_so_and_closed(tmp_path: Path, kind: str) -> None:
    async with served(kind, tmp_path) as server:
        for key in ("orbitmq.maxConnections", "orbitmq.maxConnectionsPerAddress"):
            await server.change(key, 1)  # the connection that says so is the one
            other = Pool()
            answer = await server.ask(pool=other)
            assert answer.code == BUSY
            assert "at most 1 " in (answer.remark or "")
            assert key in (answer.remark or "")
            async with raw_client(server.address) as client:
                client.send(b"\0\0\0\x15\0\0\0\x11" + b'{"code":1,"x":"y"}'[:17])
                await client.rest()  # closed, whatever it said
            assert (await server.ask()).code == 0
            await other.close()
            await server.change(key, 0)
            another = Pool()
            assert (await server.ask(pool=another)).code == 0
            await another.close()
        counted = await server.refused()
        assert counted.keys() == {"orbitmq.maxConnections", "orbitmq.maxConnectionsPerAddress"}


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:0:7::1", "2001:db8:0:7::/64"),
        ("2001:db8:0:7:ffff::2", "2001:db8:0:7::/64"),
        ("2001:db8:0:8::1", "2001:db8:0:8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(host: str, counted: str) -> None:
    assert counted_as(host) == counted


async def test_a_client_behind_a_proxy_counts_as_itself(tmp_path: Path) -> None:
    """Until its header is read it is the proxy, of which there is one connection too many."""
    async with served("broker", tmp_path) as server:
        await server.change("orbitmq.maxConnectionsPerAddress", 1)
        async with raw_client(server.address) as client:
            client.send(b"PROXY TCP4 10.0.0.7 10.0.0.1 5555 10911\r\n")
            for opaque in (1, 2):  # one that is turned away gets one answer
                request = Command(server.harmless, opaque=opaque)
                sign(request, ROOT)
                client.send(commands.encode(request))
                answer = await client.answer()
                assert (answer.opaque, answer.code) == (opaque, 0)


@BOTH
@pytest.mark.parametrize("whose", ["Address", "User"])
async def test_requests_and_bytes_a_second(tmp_path: Path, kind: str, whose: str) -> None:
    requests, volume = (f"orbitmq.{what}PerSecondPer{whose}" for what in ("requests", "bytes"))
    async with served(kind, tmp_path) as server:
        await server.change(requests, 3)
        codes = [(await server.ask()).code for _ in range(5)]
        assert codes == [0, 0, 0, BUSY, BUSY]
        remark = (await server.ask()).remark or ""
        assert f"requests a second of one {whose.lower()}: at most 3 " in remark
        assert requests in remark
        server.clock.advance(seconds=1)
        await server.change(requests, 0)
        await server.change(volume, 1000)
        assert (await server.ask(body=bytes(5000))).code == 0  # paid for afterwards
        answer = await server.ask()
        assert answer.code == BUSY
        assert volume in (answer.remark or "")
        server.clock.advance(seconds=6)
        await server.change(volume, 0)
        assert [(await server.ask()).code for _ in range(20)] == [0] * 20
        assert (await server.refused()).keys() == {requests, volume}


async def test_users_do_not_pay_for_each_other_nor_for_forgers(tmp_path: Path) -> None:
    member = Credentials("member", "member-secret")
    settings = {"orbitmq.requestsPerSecondPerUser": 2}
    async with served("broker", tmp_path, **settings) as server:
        assert isinstance(server.server, Broker)
        server.server.state.users.create(User(username="member", password="member-secret", user_type="Super"))
        pool = Pool()

        async def send(who: Credentials) -> int:
            request = Command(SEND_V2, fields=send_header("T").to_fields(), body=b"x")
            sign(request, who)
            return (await pool.call(server.address, request, PATIENCE_SECONDS)).code

        assert [await send(ROOT) for _ in range(3)] == [0, 0, BUSY]  # the first makes the topic, the second is express
        assert [await send(Credentials("member", "guessed")) for _ in range(5)] == [16] * 5
        assert [await send(member) for _ in range(3)] == [0, 0, BUSY]
        server.clock.advance(ms=500)
        assert [await send(member) for _ in range(2)] == [0, BUSY]
        await pool.close()


async def test_a_send_that_the_short_way_could_not_store_is_paid_for_once(tmp_path: Path) -> None:
    async with served("broker", tmp_path, **{"orbitmq.requestsPerSecondPerUser": 3, "maxMessageSize": 1000}) as server:
        pool = Pool()

        async def send(size: int) -> int:
            request = Command(SEND_V2, fields=send_header("T").to_fields(), body=bytes(size))
            sign(request, ROOT)
            return (await pool.call(server.address, request, PATIENCE_SECONDS)).code

        # The first makes the topic, so the others begin on the short way; one too large is refused on the ordinary one.
        assert [await send(size) for size in (1, 2000, 1, 1)] == [0, 13, 0, BUSY]
        await pool.close()


async def test_properties_are_bytes_that_a_user_pays_for_as_bodies_are(tmp_path: Path) -> None:
    async with served("broker", tmp_path, **{"orbitmq.bytesPerSecondPerUser": 10_000}) as server:
        pool = Pool()

        async def send(size: int) -> int:
            header = send_header("T", properties={"UNIQ_KEY": "U", "p": "x" * size})
            request = Command(SEND_V2, fields=header.to_fields(), body=b"1")
            sign(request, ROOT)
            return (await pool.call(server.address, request, PATIENCE_SECONDS)).code

        assert [await send(1), await send(30_000), await send(1)] == [0, 0, BUSY]
        server.clock.advance(seconds=2)
        assert await send(1) == BUSY, "it is not paid for yet"
        server.clock.advance(seconds=2)
        assert await send(1) == 0
        await pool.close()


@BOTH
async def test_headers_and_frames_too_large_end_the_connection(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(kind, tmp_path) as server:
        await server.change("orbitmq.maxHeaderBytes", 8192)
        await server.change("orbitmq.maxFrameBytes", 100_000)
        for header, body in ((b" " * 9000, b""), (b"{}", bytes(100_000))):
            async with raw_client(server.address) as client:
                client.send((4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big"))
                assert await client.rest() == b""
        assert "header of 9,000 bytes; the limit is 8,192 (orbitmq.maxHeaderBytes" in caplog.text
        assert "the limit is 100,000 (either the peer" in caplog.text
        assert await server.refused() == {"orbitmq.maxHeaderBytes": 1, "orbitmq.maxFrameBytes": 1}


async def test_topics_and_groups_created_a_minute(tmp_path: Path) -> None:
    settings = {"orbitmq.topicsCreatedPerMinute": 2, "orbitmq.groupsCreatedPerMinute": 1}
    async with served("broker", tmp_path, **settings) as server:
        assert isinstance(server.server, Broker)
        state = server.server.state

        async def create(topic: str) -> Command:
            header = CreateTopic(
                topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
                topic_filter_type="SINGLE_TAG",
            )  # fmt: skip
            request = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=header.to_fields())
            sign(request, ROOT)
            return await server._pool.call(server.address, request, PATIENCE_SECONDS)

        assert (await create("one")).code == 0
        assert state.topics.create_for_send("two", "TBW102", 1) is not None
        refused = await create("three")
        assert refused.code == BUSY
        assert "new topics a minute: at most 2 " in (refused.remark or "")
        assert (await create("one")).code == 0  # is there already
        with pytest.raises(RequestFailed, match=r"new topics a minute: at most 2 \(.*orbitmq.topicsCreatedPerMinute"):
            state.topics.create_for_send("three", "TBW102", 1)
        assert state.groups.find("G1") is not None
        with pytest.raises(RequestFailed, match="new groups a minute: at most 1"):
            state.groups.find("G2")
        server.clock.advance(minutes=1)
        assert (await create("three")).code == 0
        assert state.groups.find("G2") is not None
        assert await server.refused() == {"orbitmq.topicsCreatedPerMinute": 2, "orbitmq.groupsCreatedPerMinute": 1}


def test_a_clock_that_goes_back_locks_nobody_out() -> None:
    clock, limits = ManualClock(), LoadLimits(requests_per_second_per_user=1)
    rates = Rates("user", lambda: limits, clock, Refusals())
    minute = PerMinute("key", "things", lambda: 1, clock, Refusals())
    rates.take("u", 1)
    minute.take()
    clock.advance(seconds=-3600)
    minute.take()
    with pytest.raises(OrbitError):
        rates.take("u", 1)
    clock.advance(seconds=1)
    rates.take("u", 1)


def test_limits_that_cannot_be(tmp_path: Path) -> None:
    for key, value in (
        ("orbitmq.maxConnections", "-1"),
        ("orbitmq.maxHeaderBytes", "10"),
        ("orbitmq.maxFrameBytes", "x"),
    ):
        with pytest.raises(ConfigError, match=key):
            configuration(tmp_path, {key: value})
