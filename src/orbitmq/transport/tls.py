"""TLS on the same port as plain traffic.

A connection's first bytes tell which it is, so TLS cannot be left to the listening socket: it is a layer over memory
buffers between the socket and the frame decoder. That also lets it run over any transport, a simulated one included.

Certificates are read again when their files change, for new connections.

Java: TlsSystemConfig, TlsMode, TlsHelper
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from orbitmq.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


class TlsMode(StrEnum):
    DISABLED = "disabled"  # a TLS client is turned away
    PERMISSIVE = "permissive"  # both are served
    ENFORCING = "enforcing"  # a plain client is turned away


class ClientAuth(StrEnum):
    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsSettings:
    """What a server says to other servers. Java's names: tls.enable, tls.client.certPath, .keyPath, .keyPassword, .trustCertPath"""

    enabled: bool = False
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    trusted: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Server side. Java's names: tls.server.mode, .certPath, .keyPath, .keyPassword, .trustCertPath, .need.client.auth"""

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    trusted: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    outgoing: ClientTlsSettings = ClientTlsSettings()

    def __post_init__(self) -> None:
        if self.mode is TlsMode.ENFORCING and self.certificate is None:
            raise ConfigError(
                "TLS mode is enforcing, but there is no certificate",
                hint="set tls.server.certPath and tls.server.keyPath",
            )
        if self.client_auth is not ClientAuth.NONE and self.trusted is None:
            raise ConfigError(
                f"client certificates are {self.client_auth.value}, but nothing says which to trust",
                hint="set tls.server.trustCertPath",
            )


class ServerTls:
    """Answers with the context for the next connection; None when TLS cannot be served."""

    def __init__(self, settings: TlsSettings) -> None:
        self.mode = settings.mode
        self._settings = settings
        self._stamps: tuple[float, ...] = ()
        self._context: ssl.SSLContext | None = None
        if settings.mode is not TlsMode.DISABLED and settings.certificate is not None:
            self._stamps = _stamps(settings)
            self._context = server_context(settings)

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._context

    def layer(self, *, is_tls: bool) -> TlsLayer | None:
        """What a client that begins so gets. TransportError if it is not served."""
        if is_tls:
            if self._context is None:
                cause = "TLS is disabled here" if self.mode is TlsMode.DISABLED else "no certificate is configured here"
                raise TransportError(
                    f"a TLS client connected, but {cause}", hint="set tls.server.certPath and .keyPath"
                )
            return TlsLayer(self._context)
        if self.mode is TlsMode.ENFORCING:
            raise TransportError(
                "a plain client connected, but only TLS is served here", hint="tls.server.mode=permissive"
            )
        return None

    def reload_if_changed(self) -> None:
        """Called now and then. A broken new certificate is reported and the working one kept."""
        if self._context is None:
            return
        stamps = _stamps(self._settings)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = server_context(self._settings)
        except ConfigError as error:
            logger.error("kept the old TLS certificate: %s", error)
        else:
            logger.info("reloaded the TLS certificate %s", self._settings.certificate)


class ClientTls:
    """Of a server that connects to others, for months: each connection is made with what the files say then."""

    def __init__(self, settings: ClientTlsSettings) -> None:
        self._settings = settings
        self._stamps = _stamps(settings)
        self._context = client_context(settings)

    def newest(self) -> ssl.SSLContext:
        """Files that are broken, or half written, are reported, and what worked is kept."""
        stamps = _stamps(self._settings)
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = client_context(self._settings)
            except ConfigError as error:
                logger.error("kept the old TLS certificate for connections to other servers: %s", error)
            else:
                logger.info("reloaded the TLS certificate for connections to other servers")
        return self._context


def _stamps(settings: TlsSettings | ClientTlsSettings) -> tuple[float, ...]:
    paths = (settings.certificate, settings.key, settings.trusted)
    return tuple(_modified(path) for path in paths if path is not None)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class SteadyContext:
    """One context for a whole port that is TLS alone, whatever the mode of others.

    Each connection is given the newest one when it says hello, so that an authority that was taken out counts no longer, either.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._files = ServerTls(replace(settings, mode=TlsMode.PERMISSIVE))
        self.context = server_context(settings)
        self.context.num_tickets = 0  # with one, who was trusted once would not be asked again
        self.context.sni_callback = self._give_newest  # called for every hello, with a name or without

    def reload_if_changed(self) -> None:
        self._files.reload_if_changed()

    def _give_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._files.context is not None:
            connection.context = self._files.context


def client_context(settings: ClientTlsSettings) -> ssl.SSLContext:
    """For servers among themselves. With an authority of one's own its signature is enough, as in Java: servers know each other
    by addresses that certificates rarely name. Without, the machine's authorities and the name have to agree."""
    context = ssl.create_default_context()
    try:
        if settings.trusted is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(settings.trusted)
        if settings.certificate is not None:
            _load_own(context, settings.certificate, settings.key, settings.key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use tls.client.trustCertPath, .certPath or .keyPath: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load_own(context: ssl.SSLContext, certificate: Path | None, key: Path | None, password: str | None) -> None:
    assert certificate is not None
    # Without any password OpenSSL would ask for one on the terminal, and the server would wait there.
    context.load_cert_chain(certificate, key, password or "")


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    assert settings.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs a server more than who asks for it
    try:
        _load_own(context, settings.certificate, settings.key, settings.key_password)
        if settings.trusted is not None:
            context.load_verify_locations(settings.trusted)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the TLS certificate {settings.certificate}: {error}") from None
    context.verify_mode = {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
    }[settings.client_auth]
    return context


class TlsLayer:
    """Bytes in, bytes out: what comes from the wire is turned to plain text, what we write to cipher text."""

    __slots__ = ("_incoming", "_object", "_outgoing", "handshaken")

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """With `server_name` this is the client's end."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self.handshaken = False

    def receive(self, cipher_text: bytes) -> bytes:
        """The plain text in it, if any. TransportError when the peer does not keep to TLS or is not trusted."""
        self._incoming.write(cipher_text)
        try:
            if not self.handshaken:
                self._object.do_handshake()
                self.handshaken = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise TransportError(f"TLS failed: {error.reason or error}") from None

    def start(self) -> None:
        """The client's first move: puts its hello into `pending`."""
        self.receive(b"")

    def encrypt(self, plain_text: bytes) -> bytes:
        self._object.write(plain_text)
        return self.pending()

    def pending(self) -> bytes:
        """Cipher text to send: handshake answers above all."""
        return self._outgoing.read()

    def _read_all(self) -> bytes:
        parts = []
        try:
            while part := self._object.read(1 << 18):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass  # the peer said goodbye; its closing of the socket follows
        return b"".join(parts)
