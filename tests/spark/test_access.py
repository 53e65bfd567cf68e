"""Reaching clusters that are guarded: TLS and credentials, on the driver and in the workers alike."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trustme
from pyspark.sql.datasource import CaseInsensitiveDict

from orbitmq.errors import ConfigError, TransportError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from orbitmq.spark.access import Access
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.source import RocketMQSource
from orbitmq.transport.server import Server
from orbitmq.transport.tls import ClientAuth, TlsMode, TlsSettings
from tests.client.scripted import scripted_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.client.scripted import ScriptedCluster


def read_bodies(**options: str) -> list[bytes]:
    source = RocketMQSource(CaseInsensitiveDict({"subscribe": "T", "columns": "body", **options}))
    planned = source.reader(source.schema())
    reader = pickle.loads(pickle.dumps(planned))  # as it travels to a worker
    assert isinstance(reader, BatchReader)
    return [body for part in planned.partitions() for batch in reader.read(part) for body in batch["body"].to_pylist()]


@asynccontextmanager
async def guarded_cluster(settings: TlsSettings) -> AsyncIterator[tuple[ScriptedCluster, str]]:
    """With one message, and the address of its name server."""
    async with scripted_cluster(topics={"T": 1}) as cluster:
        cluster.broker.put("T", 0, b"secret")
        await cluster.stop("name server")
        await cluster.stop("broker-a")
        broker = Server(cluster.broker.routes(), tls=settings)  # type: ignore[arg-type]
        cluster.broker.address = await broker.start("127.0.0.1", 0)
        name_server = Server(cluster.name_server_routes(), tls=settings)  # type: ignore[arg-type]
        try:
            yield cluster, str(await name_server.start("127.0.0.1", 0))
        finally:
            await broker.stop(grace_seconds=0.01)
            await name_server.stop(grace_seconds=0.01)


def certificates(folder: Path) -> None:
    """ca.pem, server.pem with its key, and a client's two files."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    client = authority.issue_cert("a-client")
    client.cert_chain_pems[0].write_to_path(folder / "client.pem")
    client.private_key_pem.write_to_path(folder / "client.key")


async def test_tls_and_credentials_all_the_way(tmp_path: Path) -> None:
    certificates(tmp_path)
    settings = TlsSettings(mode=TlsMode.ENFORCING, certificate=tmp_path / "server.pem")
    async with guarded_cluster(settings) as (cluster, address):
        who = {"accessKey": "me", "secretKey": "s", "securityToken": "of-today"}
        options = {"nameServer": address, "tlsCaFile": str(tmp_path / "ca.pem"), **who}
        assert await asyncio.to_thread(lambda: read_bodies(**options)) == [b"secret"]
        for code in (RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET):
            (asked,) = cluster.broker.received(code)
            assert asked.fields[ACCESS_KEY] == "me"
            assert asked.fields[SECURITY_TOKEN] == "of-today"
            assert SIGNATURE in asked.fields
        with pytest.raises(TransportError):  # in the clear
            await asyncio.to_thread(lambda: read_bodies(nameServer=address, timeoutMs="300"))


async def test_tls_without_a_look_at_who_it_is(tmp_path: Path) -> None:
    """`tlsVerify` says that TLS is wanted, whichever way it is said."""
    certificates(tmp_path)
    async with guarded_cluster(TlsSettings(mode=TlsMode.ENFORCING, certificate=tmp_path / "server.pem")) as (
        _,
        address,
    ):
        assert await asyncio.to_thread(lambda: read_bodies(nameServer=address, tlsVerify="false")) == [b"secret"]
        with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(lambda: read_bodies(nameServer=address, tlsVerify="true", timeoutMs="2000"))


async def test_a_certificate_of_the_client(tmp_path: Path) -> None:
    certificates(tmp_path)
    settings = TlsSettings(
        mode=TlsMode.ENFORCING,
        certificate=tmp_path / "server.pem",
        trusted=tmp_path / "ca.pem",
        client_auth=ClientAuth.REQUIRE,
    )
    async with guarded_cluster(settings) as (_, address):
        options = {"nameServer": address, "tlsCaFile": str(tmp_path / "ca.pem"), "timeoutMs": "2000"}
        with pytest.raises(TransportError):
            await asyncio.to_thread(lambda: read_bodies(**options))
        own = {"tlsCertFile": str(tmp_path / "client.pem"), "tlsKeyFile": str(tmp_path / "client.key")}
        assert await asyncio.to_thread(lambda: read_bodies(**options, **own)) == [b"secret"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"securityToken": "t"}, "securityToken is given without accessKey"),
        ({"tlsKeyFile": "client.key"}, "tlsKeyFile is given without tlsCertFile"),
        ({"tls": "true", "tlsKeyFile": "client.key"}, "tlsKeyFile is given without tlsCertFile"),
    ],
)
def test_halves_of_what_belongs_together_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_bodies(nameServer="127.0.0.1:1", **options)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = Access("n:1", tls=True, tls_ca_file=str(tmp_path / "nowhere.pem"))
    with pytest.raises(ConfigError, match=r"the TLS files cannot be used.*on every executor"):
        missing.client_config()


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Access("n:1", access_key="me", secret_key="hidden", security_token="hidden"))
