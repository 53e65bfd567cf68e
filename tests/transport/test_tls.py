"""TLS and plain traffic on one port, client certificates, and certificates that change while the server runs."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from orbitmq.errors import ConfigError, ConnectionLost, TransportError
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from orbitmq.transport.tls import ClientAuth, ClientTls, ClientTlsSettings, TlsLayer, TlsMode, TlsSettings
from tests.raw_client import PATIENCE_SECONDS, RawClient, raw_client, until
from tests.transport.serving import ECHO, echo, pool_of, serving

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection


class Certificates:
    """An authority, a server certificate of its own on disk, and contexts for clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.trusted = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        self.issue()
        self.authority.cert_pem.write_to_path(str(self.trusted))

    def issue(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(self.key))
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def lock_key(self, password: bytes) -> None:
        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        encryption = serialization.BestAvailableEncryption(password)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self.key.write_bytes(key.private_bytes(encoding, form, encryption))

    def settings(self, mode: TlsMode = TlsMode.PERMISSIVE, client_auth: ClientAuth = ClientAuth.NONE) -> TlsSettings:
        return TlsSettings(
            mode=mode, certificate=self.certificate, key=self.key, trusted=self.trusted, client_auth=client_auth
        )

    def client(self, *, trusting: bool = True, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if trusting:
            self.authority.configure_trust(context)
        if with_certificate:
            self.authority.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def is_served(address: Address, context: ssl.SSLContext | None) -> bool:
    async with pool_of(tls=context) as pool:
        try:
            answer = await pool.call(address, Command(ECHO, body=b"x"), PATIENCE_SECONDS)
        except ConnectionLost:
            return False
        return answer.body == b"x"


@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"),
    [(TlsMode.DISABLED, True, False), (TlsMode.PERMISSIVE, True, True), (TlsMode.ENFORCING, False, True)],
)
async def test_the_mode_says_who_is_served(
    mode: TlsMode, plain: bool, encrypted: bool, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({ECHO: echo}, tls=certificates.settings(mode)) as (_, address):
        assert await is_served(address, None) == plain
        assert await is_served(address, certificates.client()) == encrypted
    assert len(caplog.records) == (not plain) + (not encrypted)


async def test_a_tls_hello_without_a_certificate_to_answer_with_is_refused_in_one_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({ECHO: echo}) as (_, address):
        assert not await is_served(address, certificates.client())
        assert await is_served(address, None)
    assert len(caplog.records) == 1
    assert "no certificate is configured" in caplog.text


async def test_a_client_that_does_not_trust_us_goes_away(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({ECHO: echo}, tls=certificates.settings()) as (server, address):
        assert not await is_served(address, certificates.client(trusting=False))
        await until(lambda: not server.connections)
        assert await is_served(address, certificates.client())
    assert "TLS failed" in caplog.text


@pytest.mark.parametrize(
    ("client_auth", "without", "with_one"),
    [(ClientAuth.NONE, True, True), (ClientAuth.OPTIONAL, True, True), (ClientAuth.REQUIRE, False, True)],
)
async def test_client_certificates_are_asked_for_as_configured(
    client_auth: ClientAuth, without: bool, with_one: bool, certificates: Certificates
) -> None:
    async with serving({ECHO: echo}, tls=certificates.settings(client_auth=client_auth)) as (_, address):
        assert await is_served(address, certificates.client()) == without
        assert await is_served(address, certificates.client(with_certificate=True)) == with_one


async def test_a_certificate_of_a_stranger_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    context = certificates.client()
    stranger.authority.issue_cert("client@example.org").configure_cert(context)
    async with serving({ECHO: echo}, tls=certificates.settings(client_auth=ClientAuth.OPTIONAL)) as (_, address):
        assert not await is_served(address, context)


@pytest.mark.parametrize("size", [0, 1, 16_384, 5_000_000])
async def test_answers_of_any_size_arrive_whole(size: int, certificates: Certificates) -> None:
    body = os.urandom(size)
    async with (
        serving({ECHO: echo}, tls=certificates.settings()) as (_, address),
        pool_of(tls=certificates.client()) as pool,
    ):
        assert (await pool.call(address, Command(ECHO, body=body), PATIENCE_SECONDS)).body == body


async def test_many_requests_share_an_encrypted_connection(certificates: Certificates) -> None:
    async with (
        serving({ECHO: echo}, tls=certificates.settings()) as (_, address),
        pool_of(tls=certificates.client()) as pool,
    ):
        connection = await pool.connection(address)
        calls = [connection.start_call(Command(ECHO, body=b"%d" % i), PATIENCE_SECONDS) for i in range(500)]
        assert [(await call).body for call in calls] == [b"%d" % i for i in range(500)]


async def test_a_handshake_in_single_bytes_behind_a_proxy(certificates: Certificates) -> None:
    async with (
        serving({ECHO: whoami}, tls=certificates.settings(TlsMode.ENFORCING)) as (_, address),
        raw_client(address) as client,
    ):
        layer = TlsLayer(certificates.client(), server_name="127.0.0.1")
        layer.start()
        await in_single_bytes(client, b"PROXY TCP4 10.0.0.7 10.0.0.1 5555 9876\r\n" + layer.pending())
        while not layer.handshaken:
            layer.receive(await client.raw(1 << 16))
            await in_single_bytes(client, layer.pending())
        await in_single_bytes(client, layer.encrypt(client.request(ECHO)))
        plain = b""
        while not plain:
            plain = layer.receive(await client.raw(1 << 16))
        assert plain.endswith(b"10.0.0.7:5555")


async def whoami(request: Command, connection: Connection) -> Command:
    return commands.ok(body=str(connection.peer).encode())


async def in_single_bytes(client: RawClient, data: bytes) -> None:
    await client.send_in_pieces(data[at : at + 1] for at in range(len(data)))


async def test_garbage_after_a_hello_is_refused_in_one_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({ECHO: echo}, tls=certificates.settings()) as (server, address), raw_client(address) as client:
        client.send(b"\x16\x03\x01" + bytes(500))
        await until(lambda: not server.connections)
    assert len(caplog.records) == 1
    assert "TLS failed" in caplog.text


async def serial_number(address: Address, context: ssl.SSLContext) -> int:
    """Of the certificate that the server shows."""
    async with raw_client(address) as client:
        layer = TlsLayer(context, server_name="127.0.0.1")
        layer.start()
        client.send(layer.pending())
        while not layer.handshaken:
            layer.receive(await client.raw(1 << 16))
            client.send(layer.pending())
        certificate = layer._object.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_live_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    context = certificates.client()
    async with serving({ECHO: echo}, tls=certificates.settings()) as (_, address), pool_of(tls=context) as pool:
        await pool.call(address, Command(ECHO), PATIENCE_SECONDS)
        before = await serial_number(address, context)
        assert await serial_number(address, context) == before
        certificates.issue()
        touch(certificates, 1)
        assert await serial_number(address, context) != before
        assert (await pool.call(address, Command(ECHO), PATIENCE_SECONDS)).code == 0


async def test_a_broken_new_certificate_is_reported_once_and_the_old_one_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    context = certificates.client()
    async with serving({ECHO: echo}, tls=certificates.settings()) as (_, address):
        before = await serial_number(address, context)
        certificates.certificate.write_text("half a certifi")
        touch(certificates, 1)
        assert await serial_number(address, context) == before
        certificates.certificate.unlink()
        assert await serial_number(address, context) == before
        assert await serial_number(address, context) == before
    reports = [record for record in caplog.records if "kept the old TLS certificate" in record.getMessage()]
    assert len(reports) == 2


async def test_a_server_connects_to_others_with_the_certificate_and_the_authority_of_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Certificates(tmp_path)
    settings = ours.settings(TlsMode.ENFORCING, ClientAuth.REQUIRE)
    outgoing = ClientTls(
        ClientTlsSettings(enabled=True, certificate=ours.certificate, key=ours.key, trusted=ours.trusted)
    )

    async def is_let_in() -> bool:
        pool = Pool(tls=outgoing.newest)  # a connection of its own
        try:
            return (await pool.call(address, Command(ECHO, body=b"x"), PATIENCE_SECONDS)).body == b"x"
        except ConnectionLost:
            return False
        finally:
            await pool.close()

    async with serving({ECHO: echo}, tls=settings) as (_, address):
        assert await is_let_in()
        ours.authority = trustme.CA()
        ours.issue()
        ours.authority.cert_pem.write_to_path(str(ours.trusted))
        touch(ours, 1)
        assert await is_let_in()
        kept = outgoing.newest()
        ours.trusted.write_text("half an auth")
        touch(ours, 2)
        assert outgoing.newest() is outgoing.newest() is kept
    reports = [record for record in caplog.records if "connections to other servers" in record.getMessage()]
    assert [record.levelname for record in reports if record.levelname == "ERROR"] == ["ERROR"]


def touch(certificates: Certificates, seconds: int) -> None:
    """Move the files' times, which may be too coarse to show a change made at once."""
    for path in (certificates.certificate, certificates.key, certificates.trusted):
        stamp = path.stat().st_mtime + seconds
        os.utime(path, (stamp, stamp))


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no certificate"):
        TlsSettings(mode=TlsMode.ENFORCING)
    with pytest.raises(ConfigError, match="which to trust"):
        TlsSettings(client_auth=ClientAuth.REQUIRE)


@pytest.mark.parametrize("damage", ["no certificate", "no key", "another's key", "locked key"])
async def test_a_certificate_that_cannot_be_used_stops_the_start(damage: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    if damage == "no certificate":
        certificates.certificate.unlink()
    elif damage == "no key":
        certificates.key.unlink()
    elif damage == "another's key":
        certificates.authority.issue_cert("x.example").private_key_pem.write_to_path(str(certificates.key))
    else:
        certificates.lock_key(b"secret")  # with no password given: must not ask the terminal for one
    with pytest.raises(ConfigError, match="cannot use the TLS certificate"):
        async with serving({}, tls=certificates.settings()):
            pass


async def test_a_locked_key_opens_with_its_password(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.lock_key(b"secret")
    settings = TlsSettings(certificate=certificates.certificate, key=certificates.key, key_password="secret")
    async with serving({ECHO: echo}, tls=settings) as (_, address):
        assert await is_served(address, certificates.client())


def test_a_layer_fed_with_garbage_fails_with_our_error(certificates: Certificates) -> None:
    layer = TlsLayer(certificates.client(), server_name="127.0.0.1")
    layer.start()
    with pytest.raises(TransportError, match="TLS failed"):
        layer.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
