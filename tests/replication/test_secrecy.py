"""The copying of the log behind TLS and names: who may copy does, who may not learns nothing of it."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
import trustme

from orbitmq.broker.broker import Broker
from orbitmq.broker.replication import master as master_module
from orbitmq.broker.replication.master import SlaveState
from orbitmq.broker.replication.wire import REPORT, Handshake, hello, proof
from orbitmq.errors import ConfigError, FrameError
from orbitmq.protocol.bodies.access import CUSTOM, DISABLED, Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.signing import SigningKey
from tests.broker.kit import PATIENCE_SECONDS, configuration
from tests.nameserver.running import running as running_name_server
from tests.replication.kit import copied, log_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.transport.address import Address

ROOT: Final = '{"username":"root","password":"root-secret"}'
INNER: Final = '{"accessKey":"root","secretKey":"root-secret"}'
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": ROOT,
    "innerClientAuthenticationCredentials": INNER,
}


class Files:
    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        folder.mkdir()
        self.settings: dict[str, object] = {"tls.enable": "true"}
        for side in ("server", "client"):
            issued = authority.issue_cert("broker.example.org")
            key, certificate = folder / f"{side}.key", folder / f"{side}.pem"
            issued.private_key_pem.write_to_path(str(key))
            certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
            authority.cert_pem.write_to_path(str(folder / "ca.pem"))
            self.settings[f"tls.{side}.certPath"] = certificate
            self.settings[f"tls.{side}.keyPath"] = key
            self.settings[f"tls.{side}.trustCertPath"] = folder / "ca.pem"


async def test_a_whole_group_behind_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    files = Files(tmp_path / "tls").settings
    strict = {**files, "tls.server.mode": "enforcing", "tls.server.need.client.auth": "require"}
    on_names: dict[str, Any] = {**strict, **GUARDED}
    async with running_name_server(tmp_path / "names", **on_names) as names:
        shared = {
            **strict,
            **GUARDED,
            "namesrvAddr": names.address,
            "orbitmq.haTls": "true",
            "orbitmq.haAuthentication": "true",
        }
        slave_only = {"brokerId": 1, "brokerRole": "SLAVE"}
        async with Broker(configuration(tmp_path / "master", shared)) as master:
            master.state.sending.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
            async with Broker(configuration(tmp_path / "slave", {**shared, **slave_only})) as slave:
                await copied(master, slave)
                assert log_bytes(slave) == log_bytes(master)
                assert b"secret" in log_bytes(slave)
            address = master.state.registration.ha_address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(hello("root") + REPORT.pack(0))  # what is no TLS hello is not even looked at
            assert b"secret" not in await heard(reader)
            writer.close()


async def heard(reader: asyncio.StreamReader) -> bytes:
    """What comes until the message does, or the end."""
    received = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with suppress(ConnectionError):
            while b"secret" not in received and (more := await reader.read(1000)):
                received += more
    return received


async def attempt_at(address: Address, first: bytes, secret: str) -> bytes:
    """What a slave hears that begins so and proves itself with this."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(first)
            challenge = await reader.read(16)
            if not challenge:
                return b""
            writer.write(proof(SigningKey(secret), challenge) + REPORT.pack(0))
        return await heard(reader)
    except ConnectionError:
        return b""
    finally:
        writer.close()


ACCESS_FILE: Final = """
globalWhiteRemoteAddresses: [%s]
accounts:
- {accessKey: admin-key, secretKey: admin-secret, admin: true, whiteRemoteAddress: "%s"}
- {accessKey: member-key, secretKey: member-secret, defaultTopicPerm: PUB|SUB, whiteRemoteAddress: "%s"}
"""


@pytest.mark.parametrize("white", [("", "127.0.0.*", "127.0.0.*"), ("127.0.0.1", "", "")])
async def test_white_addresses_neither_keep_slaves_out_nor_let_them_in(tmp_path: Path, white: tuple[str, ...]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "plain_acl.yml").write_text(ACCESS_FILE % white)
    settings = {"aclEnable": "true", "orbitmq.haAuthentication": "true"}
    async with Broker(configuration(tmp_path, settings)) as master:
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address
        assert b"secret" in await attempt_at(address, hello("admin-key"), "admin-secret")
        assert await attempt_at(address, hello("admin-key"), "guessed") == b""
        assert await attempt_at(address, hello("member-key"), "member-secret") == b""
        assert await attempt_at(address, REPORT.pack(0), "x") == b""


async def test_codes_that_need_no_signature_neither_keep_slaves_out_nor_let_them_in(tmp_path: Path) -> None:
    code = str(int(RequestCode.EXCHANGE_BROKER_HA_INFO))
    unasked = {"authenticationWhitelist": code, "authorizationWhitelist": code, "orbitmq.haAuthentication": "true"}
    async with Broker(configuration(tmp_path, {**GUARDED, **unasked})) as master:
        master.state.users.create(User(username="member", password="member-secret"))
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address
        assert b"secret" in await attempt_at(address, hello("root"), "root-secret")
        assert await attempt_at(address, hello("root"), "guessed") == b""
        assert await attempt_at(address, hello("member"), "member-secret") == b""


async def test_strangers_take_no_slaves_place_however_many_they_are(tmp_path: Path) -> None:
    settings = {**GUARDED, "orbitmq.haAuthentication": "true"}
    async with Broker(configuration(tmp_path, settings)) as master:
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address
        strangers = [await asyncio.open_connection(address.host, address.port) for _ in range(70)]
        for _, writer in strangers:
            writer.write(hello("root")[:3])
        assert b"secret" in await attempt_at(address, hello("root"), "root-secret")
        for _, writer in strangers:
            writer.transport.abort()


async def test_a_stranger_is_given_so_long_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "_HANDSHAKE_SECONDS", 0.05)
    settings = {**GUARDED, "orbitmq.haAuthentication": "true"}
    async with Broker(configuration(tmp_path, settings)) as master:
        address = master.state.registration.ha_address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for byte in hello("x" * 255)[:-1]:  # it never ends what it has to say
            writer.write(bytes([byte]))
        assert await heard(reader) == b""
        writer.close()
    assert "it has not proved who it is" in caplog.text


async def test_a_challenge_is_the_systems_unless_all_of_it_is_to_be_repeatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"s" * size)

    async def challenge(folder: str, randomness: random.Random | None) -> bytes:
        settings = {**GUARDED, "orbitmq.haAuthentication": "true"}
        async with Broker(configuration(tmp_path / folder, settings), randomness=randomness) as master:
            address = master.state.registration.ha_address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(hello("root"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                received = await reader.readexactly(16)
            writer.transport.abort()
            return received

    assert await challenge("system", None) == b"s" * 16
    assert b"s" * 16 != await challenge("first", random.Random(7)) == await challenge("second", random.Random(7))


async def test_a_wait_that_begins_while_another_is_given_up_has_the_only_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(configuration(tmp_path)) as master:
        slaves, store = master.state.slaves, master.state.store
        store.append("T", 0, b"x", b"", 0, bytes(8), 0, 0, 0)
        monkeypatch.setattr(slaves, "states", lambda: [SlaveState("10.0.0.1:1", 0, 0, 0)])
        timers = Timers()
        monkeypatch.setattr(slaves, "_loop", timers)
        told: list[ResponseCode] = []

        def again(verdict: ResponseCode) -> None:
            told.append(verdict)
            slaves.tell(store.log.end, 1, told.append)

        slaves.tell(store.log.end, 1, again)
        for waits in (1, 2):
            timers.now += 1000
            (timer,) = timers.armed
            timers.armed.clear()
            timer()
            assert told == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * waits
        assert timers.armed == []


class Timers:
    """An event loop's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.armed: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> object:
        self.armed.append(callback)
        return callback

    def call_at(self, _when: float, callback: Callable[[], None]) -> object:
        self.armed.append(callback)
        return callback


async def test_only_users_with_a_right_copy_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**GUARDED, "orbitmq.haAuthentication": "true"}
    async with Broker(configuration(tmp_path / "master", settings)) as master:
        master.state.users.create(User(username="member", password="member-secret"))
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address

        attempt = partial(attempt_at, address)
        assert b"secret" in await attempt(hello("root"), "root-secret")
        assert await attempt(hello("root"), "guessed") == b""
        assert await attempt(hello("member"), "member-secret") == b""
        assert await attempt(hello("stranger"), "x") == b""
        assert await attempt(REPORT.pack(0), "x") == b""
        assert await attempt(b"GET / HTTP/1.1\r\n\r\n", "x") == b""
    for cause in ("its signature is wrong", "'member' is no user that may", "'stranger' is no user", "who it is"):
        assert cause in caplog.text
    assert "root-secret" not in caplog.text


@pytest.mark.parametrize("change", ["deleted", "disabled", "password", "policy", "source"])
async def test_who_may_no_longer_copy_the_log_is_sent_no_more_of_it(tmp_path: Path, change: str) -> None:
    settings = {**GUARDED, "orbitmq.haAuthentication": "true"}
    entry = PolicyEntry(resource="Cluster:*", actions=["Update"], decision="Allow")
    async with Broker(configuration(tmp_path / "master", settings)) as master:
        users, store, address = master.state.users, master.state.store, master.state.registration.ha_address
        users.create(User(username="member", password="member-secret"), [Policy(policy_type=CUSTOM, entries=[entry])])
        store.append("T", 0, b"first", b"", 0, bytes(8), 0, 0, 0)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(hello("member"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            challenge = await reader.readexactly(16)
            writer.write(proof(SigningKey("member-secret"), challenge) + REPORT.pack(0))
            await reader.readuntil(b"first")
            users.create(User(username="another", password="secret-of-another"))  # changes nothing for this one
            await asyncio.sleep(1.5)
            store.append("T", 0, b"second", b"", 0, bytes(8), 0, 0, 0)
            await reader.readuntil(b"second")
            if change == "deleted":
                users.delete("member")
            elif change == "disabled":
                users.update(User(username="member", user_status=DISABLED))
            elif change == "password":
                users.update(User(username="member", password="another-secret"))
            elif change == "policy":
                users.delete_acl("User:member", None, None)
            else:
                elsewhere = msgspec.structs.replace(entry, source_ips=["10.9.8.7"])
                acl = Acl(subject="User:member", policies=[Policy(policy_type=CUSTOM, entries=[elsewhere])])
                users.create_acl(acl)
            with suppress(ConnectionError):
                while await reader.read(1000):
                    pass
            store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        assert b"secret" not in await heard(reader)
        assert master.state.slaves.states() == []
        writer.close()


def test_the_handshake_however_it_is_cut() -> None:
    key, challenge = SigningKey("secret"), bytes(range(16))
    stream = hello("root") + proof(key, challenge) + b"behind"
    for seed in range(50):
        chance = random.Random(seed)
        handshake = Handshake(lambda name: key if name == "root" else None, challenge)
        answers, rest, at = b"", b"", 0
        while at < len(stream):
            end = at + chance.randint(1, 9)
            if handshake.is_done:
                rest += stream[at:end]
            else:
                answer, left = handshake.feed(stream[at:end])
                answers, rest = answers + answer, rest + left
            at = end
        assert (answers, rest, handshake.is_done) == (challenge, b"behind", True)
    with pytest.raises(FrameError, match="signature is wrong"):
        Handshake(lambda _: key, bytes(16)).feed(stream)


def test_names_are_asked_for_only_where_there_are_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody knows who a slave may be"):
        configuration(tmp_path, {"orbitmq.haAuthentication": "true"})
    nameless = {key: value for key, value in GUARDED.items() if not key.startswith("inner")}
    slave = {**nameless, "orbitmq.haAuthentication": "true", "brokerRole": "SLAVE", "brokerId": 1}
    with pytest.raises(ConfigError, match="this slave has no name"):
        configuration(tmp_path, slave)


async def is_served(address: Address, context: ssl.SSLContext) -> bool:
    """Whether who comes so is sent the log; with TLS 1.3 it hears of a refusal only then."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            writer.write(REPORT.pack(0))
            received = await reader.read(1000)
    except (ssl.SSLError, ConnectionError):
        return False
    writer.transport.abort()
    return bool(received)


def slaves_context(trusted: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(trusted))
    return context


def renew(file: object, content: bytes) -> None:
    Path(str(file)).write_bytes(content)
    os.utime(str(file), (2_000_000_000, 2_000_000_000))


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
async def test_a_new_certificate_counts_for_slaves_that_come_later(tmp_path: Path, mode: str) -> None:
    files = Files(tmp_path / "tls").settings
    settings = {**files, "orbitmq.haTls": "true", "tls.server.mode": mode}
    async with Broker(configuration(tmp_path / "master", settings)) as master:
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address
        context = slaves_context(files["tls.client.trustCertPath"])
        assert await is_served(address, context)
        authority = trustme.CA()
        issued = authority.issue_cert("broker.example.org")
        renew(files["tls.server.certPath"], issued.cert_chain_pems[0].bytes())
        renew(files["tls.server.keyPath"], issued.private_key_pem.bytes())
        assert not await is_served(address, context)  # of an authority that this one does not trust
        authority.cert_pem.write_to_path(str(tmp_path / "new.pem"))
        assert await is_served(address, slaves_context(tmp_path / "new.pem"))


async def test_an_authority_that_was_replaced_lets_no_slave_in_any_more(tmp_path: Path) -> None:
    files = Files(tmp_path / "tls").settings
    settings = {**files, "orbitmq.haTls": "true", "tls.server.need.client.auth": "require"}
    async with Broker(configuration(tmp_path / "master", settings)) as master:
        master.state.store.append("T", 0, b"secret", b"", 0, bytes(8), 0, 0, 0)
        address = master.state.registration.ha_address
        nobody, former, later = (slaves_context(files["tls.client.trustCertPath"]) for _ in range(3))
        former.load_cert_chain(str(files["tls.client.certPath"]), str(files["tls.client.keyPath"]))
        authority = trustme.CA()
        authority.issue_cert("slave.example.org").configure_cert(later)

        async def served() -> list[bool]:
            return [await is_served(address, context) for context in (nobody, former, later)]

        assert await served() == [False, True, False]
        renew(files["tls.server.trustCertPath"], authority.cert_pem.bytes())
        assert await served() == [False, False, True]
