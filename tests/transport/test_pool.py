"""The pool: one connection per address, opened on demand, reopened when lost, with a growing pause after failures."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import ConnectFailed
from orbitmq.protocol.command import Command
from orbitmq.transport.address import Address
from orbitmq.transport.limits import Limits
from orbitmq.transport.network import Listener, TcpNetwork
from tests.raw_client import PATIENCE_SECONDS, until
from tests.transport.serving import ECHO, echo, pool_of, serving

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = Address("127.0.0.1", 1)


class CountingNetwork(TcpNetwork):
    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        self.attempts += 1
        await super().connect(protocol, address)


class DeadNetwork:
    """Nothing answers: packets vanish."""

    async def listen(self, accept: Any, host: str | None, port: int, backlog: int) -> Listener:
        raise AssertionError("nobody listens here")

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        await asyncio.Event().wait()


class RecordingRandom(random.Random):
    """Notes the back-offs it is asked for, and always chooses the same: none at all, unless told otherwise."""

    def __init__(self, chosen: float = 0.0) -> None:
        super().__init__(0)
        self.asked: list[tuple[float, float]] = []
        self._chosen = chosen

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return self._chosen


async def test_callers_at_the_same_time_share_one_connection() -> None:
    network = CountingNetwork()
    async with serving({ECHO: echo}) as (server, address), pool_of(network=network) as pool:
        await asyncio.gather(*(pool.call(address, Command(ECHO), PATIENCE_SECONDS) for _ in range(20)))
        assert network.attempts == 1
        assert len(server.connections) == 1


async def test_a_lost_connection_is_opened_again_by_the_next_call() -> None:
    network = CountingNetwork()
    async with serving({ECHO: echo}) as (server, address), pool_of(network=network) as pool:
        first = await pool.connection(address)
        await until(lambda: server.connections)
        for accepted in list(server.connections):
            accepted.close()
        await until(lambda: first.closed)
        assert (await pool.call(address, Command(ECHO, body=b"again"), PATIENCE_SECONDS)).body == b"again"
        assert network.attempts == 2


async def test_the_owner_hears_of_connections_that_come_and_go() -> None:
    events: list[str] = []
    async with serving({ECHO: echo}) as (_, address):
        async with pool_of(
            on_open=lambda address, connection: events.append("open"),
            on_close=lambda connection: events.append("close"),
        ) as pool:
            await pool.call(address, Command(ECHO), PATIENCE_SECONDS)
        await until(lambda: events == ["open", "close"])


async def test_after_a_failure_calls_fail_at_once_until_the_pause_is_over() -> None:
    network = CountingNetwork()
    async with pool_of(network=network, randomness=RecordingRandom(3600.0)) as pool:  # far longer than the test
        failures = []
        for _ in range(50):
            with pytest.raises(ConnectFailed, match=r"nothing listens on 127\.0\.0\.1:1") as caught:
                await pool.call(NOBODY, Command(ECHO), PATIENCE_SECONDS)
            failures.append(caught.value)
        assert network.attempts == 1
        assert len({id(failure) for failure in failures}) == 50  # each its own, or tracebacks would pile up on one


async def test_the_pause_doubles_with_every_failure_up_to_a_limit_and_success_resets_it() -> None:
    randomness = RecordingRandom()
    async with pool_of(randomness=randomness) as pool:
        for _ in range(9):
            with pytest.raises(ConnectFailed):
                await pool.connection(NOBODY)
        longest = [most for _, most in randomness.asked]
        assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
        assert [least for least, _ in randomness.asked] == pytest.approx([most / 2 for most in longest])


async def test_success_after_failures_starts_over() -> None:
    randomness = RecordingRandom()
    async with serving({ECHO: echo}) as (server, address):
        pass  # its port is free again
    async with pool_of(randomness=randomness) as pool:
        for _ in range(3):
            with pytest.raises(ConnectFailed):
                await pool.connection(address)
        await server.start(address.host, address.port)
        connection = await pool.connection(address)
        await server.stop()
        await until(lambda: connection.closed)
        with pytest.raises(ConnectFailed):
            await pool.connection(address)
        assert [most for _, most in randomness.asked] == pytest.approx([0.1, 0.2, 0.4, 0.1])


async def test_nobody_answering_is_a_failure_with_advice() -> None:
    async with pool_of(network=DeadNetwork(), limits=Limits(connect_seconds=0.01)) as pool:
        with pytest.raises(ConnectFailed, match="does not answer") as caught:
            await pool.connection(NOBODY)
        assert "firewall" in caught.value.hint


async def test_one_impatient_caller_does_not_spoil_it_for_the_others() -> None:
    async with serving({ECHO: echo}) as (_, address), pool_of() as pool:
        impatient = asyncio.ensure_future(pool.connection(address))
        patient = asyncio.ensure_future(pool.connection(address))
        await asyncio.sleep(0)
        impatient.cancel()
        assert not (await patient).closed


async def test_a_failure_that_nobody_waited_for_is_not_reported_as_overlooked() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    async with pool_of(network=DeadNetwork(), limits=Limits(connect_seconds=0.02)) as pool:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await pool.connection(NOBODY)
        await asyncio.sleep(0.05)
    gc.collect()
    assert reports == []


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "..", "nul\0in.name", "no such host"])
async def test_a_name_that_no_host_can_have_is_an_ordinary_failure(host: str) -> None:
    async with pool_of() as pool:
        with pytest.raises(ConnectFailed, match=r"cannot (connect to|resolve)"):
            await pool.connection(Address(host, 1))


async def test_a_closed_pool_opens_nothing() -> None:
    async with serving({ECHO: echo}) as (server, address):
        async with pool_of() as pool:
            await pool.call(address, Command(ECHO), PATIENCE_SECONDS)
        await until(lambda: not server.connections)
        with pytest.raises(ConnectFailed, match="closed"):
            await pool.connection(address)


async def test_closing_gives_up_connections_that_are_just_being_made() -> None:
    async with pool_of(network=DeadNetwork()) as pool:
        waiting = asyncio.ensure_future(pool.connection(NOBODY))
        await asyncio.sleep(0)
    with pytest.raises(ConnectFailed, match="closed"):
        await waiting


async def test_who_waits_for_an_address_that_is_dropped_is_told_and_not_cancelled() -> None:
    async with pool_of(network=DeadNetwork()) as pool:
        waiting = [asyncio.ensure_future(pool.connection(NOBODY)) for _ in range(2)]
        cancelled = asyncio.ensure_future(pool.connection(NOBODY))
        pool.drop(NOBODY)  # also before anything has begun
        await asyncio.sleep(0)
        pool.drop(NOBODY)
        cancelled.cancel()
        for one in waiting:
            with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1 is no longer in use"):
                await one
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_a_dropped_address_is_closed_and_can_be_used_again() -> None:
    async with serving({ECHO: echo}) as (_server, address), pool_of() as pool:
        connection = await pool.connection(address)
        pool.drop(address)
        pool.drop(address)
        await until(lambda: connection.closed)
        assert (await pool.call(address, Command(ECHO), PATIENCE_SECONDS)).code == 0


async def test_a_retired_connection_gets_no_more_work_and_lives_on() -> None:
    async with serving({ECHO: echo}) as (_server, address), pool_of() as pool:
        old = await pool.connection(address)
        pool.retire(old)
        new = await pool.connection(address)
        assert new is not old
        assert not old.closed
        old.close()
