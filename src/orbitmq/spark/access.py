"""How the workers of a query reach the cluster: its options, and one shared set of connections a process.

Spark reuses its Python workers from one micro-batch to the next, so connections live as long as their process: opening one
for every task would cost more than most tasks. A forked worker begins with none.
"""

from __future__ import annotations

import atexit
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.client import portal
from orbitmq.client.cluster import Cluster
from orbitmq.client.config import ClientConfig, name_server_source
from orbitmq.errors import ConfigError
from orbitmq.protocol.signing import Credentials
from orbitmq.spark.worker_process import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from concurrent.futures import Future

    from orbitmq.client.producer import Producer
    from orbitmq.spark.options import Options

T = TypeVar("T")

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "nameServer": ("nameserver.addr", "namesrvAddr", "rocketmq.namesrv.addr", "kafka.bootstrap.servers"),
    "namespace": (),
    "accessKey": (),
    "secretKey": (),
    "securityToken": (),
    "tls": (),
    "tlsCaFile": (),
    "tlsCertFile": (),
    "tlsKeyFile": (),
    "tlsVerify": (),
    "timeoutMs": ("pullTimeout", "pull.timeout.ms"),
}
_TLS_DETAILS: Final = ("tlsCaFile", "tlsCertFile", "tlsVerify")  # who says any of them wants TLS
_DEFAULT_TIMEOUT_MS: Final = 10_000
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the cluster is and who we are. Travels to the workers; files are read there."""

    name_servers: str
    namespace: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_verify: bool = True
    timeout_ms: int = _DEFAULT_TIMEOUT_MS

    @property
    def timeout_seconds(self) -> float:
        return self.timeout_ms / 1000

    def client_config(self) -> ClientConfig:
        addresses, lookup_url = name_server_source(self.name_servers)
        credentials = None
        if self.access_key:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        return ClientConfig(
            name_servers=addresses,
            lookup_url=lookup_url,
            namespace=self.namespace,
            credentials=credentials,
            tls=self._tls_context(),
            timeout_seconds=self.timeout_seconds,
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"the TLS files cannot be used: {error}", hint="they must be readable on every executor, as PEM"
            ) from error
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def access_from(options: Options) -> Access:
    name_servers = options.text("nameServer") or os.environ.get("NAMESRV_ADDR", "")
    if not name_servers:
        raise ConfigError(
            "no name server is given", hint='.option("nameServer", "127.0.0.1:9876"), or set NAMESRV_ADDR'
        )
    name_server_source(name_servers)  # what is wrong with it shows here, on the driver
    namespace = options.text("namespace")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(f"{namespace!r} is no namespace", hint="it is made of letters, digits, _ and -")
    if options.text("secretKey") and not options.text("accessKey"):
        raise ConfigError("option secretKey is given without accessKey", hint="credentials are a pair")
    if options.text("accessKey") and not options.text("secretKey"):
        raise ConfigError("option accessKey is given without secretKey", hint="credentials are a pair")
    if options.text("securityToken") and not options.text("accessKey"):
        raise ConfigError(
            "option securityToken is given without accessKey", hint="it goes with accessKey and secretKey"
        )
    if options.text("tlsKeyFile") and not options.text("tlsCertFile"):
        raise ConfigError("option tlsKeyFile is given without tlsCertFile", hint="a key belongs to a certificate")
    return Access(
        name_servers=name_servers,
        namespace=namespace,
        access_key=options.text("accessKey"),
        secret_key=options.text("secretKey"),
        security_token=options.text("securityToken"),
        tls=options.flag("tls", any(options.text(name) for name in _TLS_DETAILS)),
        tls_ca_file=options.text("tlsCaFile"),
        tls_cert_file=options.text("tlsCertFile"),
        tls_key_file=options.text("tlsKeyFile"),
        tls_verify=options.flag("tlsVerify", True),
        timeout_ms=options.duration_ms("timeoutMs", _DEFAULT_TIMEOUT_MS),
    )


class Link:
    """The connections of this process to one cluster, and the loop they live on."""

    def __init__(self, access: Access) -> None:
        settle()
        self.access = access
        self.config = access.client_config()
        self.portal = portal.enter()
        self.cluster = self.portal.run(self._open())
        self.bytes_an_offset: dict[Hashable, float] = {}  # what readers found, for those that come after them
        self._kept: dict[Hashable, Producer] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.portal.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self.portal.submit(coroutine)

    def kept(self, key: Hashable, make: Callable[[], Producer]) -> Producer:
        """The producer that is kept under this key, for the tasks that this process will yet run."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def close(self) -> None:
        for producer in self._kept.values():
            self.portal.run(producer.close())
        self.portal.run(self.cluster.close())
        portal.leave(self.portal)

    async def _open(self) -> Cluster:
        return Cluster(self.config)


_links: dict[Access, Link] = {}


def link(access: Access) -> Link:
    """The link of this process, opened when first asked for."""
    found = _links.get(access)
    if found is None:
        found = _links[access] = Link(access)
    return found


@atexit.register
def close_links() -> None:
    """A driver that ends leaves no connection behind."""
    while _links:
        _links.popitem()[1].close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_links.clear)
