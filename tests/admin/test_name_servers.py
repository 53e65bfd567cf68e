"""What every name server has to be told: all of them are, also those that have to be found first, and one that is down stops nobody."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.admin.diagnosis import diagnose
from orbitmq.admin.key_values import put_key_value, update_name_server_settings, wipe_write_permission
from orbitmq.admin.session import open_session
from orbitmq.admin.topics import topic_names
from orbitmq.errors import ConnectFailed
from orbitmq.transport.address import Address
from orbitmq.transport.http import HttpServer, Page
from tests.nameserver.running import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOBODY = Address("127.0.0.1", 1)


@asynccontextmanager
async def page_that_names(text: str) -> AsyncIterator[str]:
    async def page() -> Page:
        return Page(text)

    server = HttpServer({"/rocketmq/nsaddr": page})
    address = await server.start("127.0.0.1", 0)
    try:
        yield f"http://{address}/rocketmq/nsaddr"
    finally:
        await server.stop()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    async def resolved(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 0, "", (one, port)) for one in hosts
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved, raising=False)


async def test_the_living_are_told_though_the_first_is_down(tmp_path: Path) -> None:
    async with running(tmp_path) as alive:
        assert alive.address is not None
        async with open_session(f"{NOBODY};{alive.address}") as session:
            session.cluster.name_servers._addresses = [NOBODY, alive.address]
            with pytest.raises(ConnectFailed, match=f"done at {alive.address}"):
                await put_key_value(session, "ours", "key", "value")
        assert alive.kv_config.get("ours", "key") == "value"


async def test_a_name_for_both_addresses_of_one_server_is_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` is on most machines, while the server listens on IPv4."""

    async with running(tmp_path) as alive:
        assert alive.address is not None
        resolve_to(monkeypatch, "::1", "127.0.0.1")
        async with open_session(f"ns.example:{alive.address.port}") as session:
            await topic_names(session)  # which looks the name up
            await put_key_value(session, "ours", "key", "value")
            assert await wipe_write_permission(session, "nobody") == {alive.address: 0}
        assert alive.kv_config.get("ours", "key") == "value"


async def test_all_behind_a_name_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "one") as one:
        assert one.address is not None
        async with running(tmp_path / "two", bindAddress="127.0.0.2", listenPort=one.address.port) as two:
            resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
            async with open_session(f"ns.example:{one.address.port}") as session:
                await put_key_value(session, "ours", "key", "value")
            assert [server.kv_config.get("ours", "key") for server in (one, two)] == ["value", "value"]


async def test_name_servers_that_a_page_names_are_told_and_looked_at(tmp_path: Path) -> None:
    async with running(tmp_path) as alive, page_that_names(str(alive.address)) as url:
        async with open_session(url) as session:
            assert await update_name_server_settings(session, {"enableTopicList": "false"}) == [alive.address]
        assert not alive.configuration.settings.enable_topic_list
        async with open_session(url) as session:
            steps = [finding.step async for finding in diagnose(session)]
        assert steps == ["name", "port", "language", "name server", "brokers"]


async def test_a_page_that_names_nobody_is_a_finding() -> None:
    async with page_that_names("") as url, open_session(url) as session:
        (finding,) = [finding async for finding in diagnose(session)]
    assert (finding.step, finding.verdict) == ("name servers", "failed")
