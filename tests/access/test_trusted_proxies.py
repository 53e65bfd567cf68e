"""PROXY headers where addresses matter: from trusted proxies alone, on brokers and name servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from orbitmq.access.proxies import TrustedProxies
from orbitmq.access.settings import AccessSettings
from orbitmq.errors import ConfigError
from orbitmq.protocol.codes import RequestCode
from tests.access.test_matrix import GUARDED
from tests.broker.kit import configuration
from tests.broker.kit import running as running_broker
from tests.nameserver.running import running as running_name_server
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from pathlib import Path

WHITE: Final = "10.1.1.1"
HEADER: Final = f"PROXY TCP4 {WHITE} 127.0.0.1 5555 9876\r\n".encode()
PER_ADDRESS: Final = (
    "max_connections_per_address",
    "requests_per_second_per_address",
    "bytes_per_second_per_address",
)


def test_everyone_is_believed_only_where_no_address_matters() -> None:
    here, there = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"), ("10.0.0.7", "2001:db8::7", "unknown")

    def believed(settings: AccessSettings, *, is_guarded: bool = False) -> set[str]:
        proxies = TrustedProxies(lambda: settings, is_guarded=is_guarded)
        return {host for host in (*here, *there) if proxies.believes(host)}

    assert believed(AccessSettings(max_connections=5, requests_per_second_per_user=5)) == {*here, *there}
    assert believed(AccessSettings(), is_guarded=True) == {*here}
    for limit in PER_ADDRESS:
        assert believed(msgspec.structs.replace(AccessSettings(), **{limit: 5})) == {*here}
    named = AccessSettings(trusted_proxies="10.0.0.0/8; 2001:db8::7;", max_connections_per_address=5)
    assert believed(named) == {"10.0.0.7", "2001:db8::7"}
    assert believed(AccessSettings(trusted_proxies="10.0.0.7")) == {"10.0.0.7"}  # named, so nobody else


def test_a_limit_that_is_set_later_counts() -> None:
    settings = AccessSettings()
    proxies = TrustedProxies(lambda: settings, is_guarded=False)
    assert proxies.believes("10.0.0.7")
    settings = AccessSettings(max_connections_per_address=1)
    assert not proxies.believes("10.0.0.7")


def test_proxies_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"orbitmq\.trustedProxies=10\.0\.0\.7;proxy\.local cannot be"):
        configuration(tmp_path, {"orbitmq.trustedProxies": "10.0.0.7;proxy.local"})


@pytest.mark.parametrize("proxies", ["", "127.0.0.1", "192.168.0.1"])
async def test_a_white_address_is_not_had_by_naming_it(
    tmp_path: Path, proxies: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "plain_acl.yml").write_text(f"globalWhiteRemoteAddresses: [{WHITE}]\n")
    settings: dict[str, Any] = {"aclEnable": "true", "orbitmq.trustedProxies": proxies}
    async with running_broker(tmp_path, **settings) as broker, raw_client(broker.address) as client:
        client.send(HEADER)
        if proxies == "192.168.0.1":
            assert await client.is_closed_by_the_server()
            assert "orbitmq.trustedProxies" in caplog.text
        else:
            assert (await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    # Who names nobody is who it is, and not white.
    async with running_broker(tmp_path, **settings) as broker, raw_client(broker.address) as client:
        assert (await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 1


@pytest.mark.parametrize("proxies", ["", "192.168.0.1"])
async def test_name_servers_have_the_same_rule(tmp_path: Path, proxies: str) -> None:
    settings: dict[str, Any] = {**GUARDED, "orbitmq.trustedProxies": proxies}
    async with running_name_server(tmp_path, **settings) as server, raw_client(server.address) as client:
        client.send(HEADER)
        if proxies:
            assert await client.is_closed_by_the_server()
        else:
            refused = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert (refused.code, "username cannot be null" in (refused.remark or "")) == (16, True)
