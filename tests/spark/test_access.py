"""Reaching clusters that are guarded: TLS and credentials, on the driver and in the workers alike."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest
import trustme
from pyspark.sql.datasource import CaseInsensitiveDict

from orbitmq.errors import ConfigError, TransportError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.signing import ACCESS_KEY, SIGNATURE
from orbitmq.spark.access import Access
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.source import RocketMQSource
from orbitmq.transport.server import Server
from orbitmq.transport.tls import TlsMode, TlsSettings
from tests.client.scripted import scripted_cluster

if TYPE_CHECKING:
    from pathlib import Path


def read_bodies(**options: str) -> list[bytes]:
    source = RocketMQSource(CaseInsensitiveDict({"subscribe": "T", "columns": "body", **options}))
    planned = source.reader(source.schema())
    reader = pickle.loads(pickle.dumps(planned))  # as it travels to a worker
    assert isinstance(reader, BatchReader)
    return [body for part in planned.partitions() for batch in reader.read(part) for body in batch["body"].to_pylist()]


async def test_tls_and_credentials_all_the_way(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    settings = TlsSettings(mode=TlsMode.ENFORCING, certificate=tmp_path / "server.pem")
    async with scripted_cluster(topics={"T": 1}) as cluster:
        cluster.broker.put("T", 0, b"secret")
        await cluster.stop("name server")
        await cluster.stop("broker-a")
        broker = Server(cluster.broker.routes(), tls=settings)  # type: ignore[arg-type]
        cluster.broker.address = await broker.start("127.0.0.1", 0)
        name_server = Server(cluster.name_server_routes(), tls=settings)  # type: ignore[arg-type]
        address = str(await name_server.start("127.0.0.1", 0))
        options = {"nameServer": address, "tlsCaFile": str(tmp_path / "ca.pem"), "accessKey": "me", "secretKey": "s"}
        try:
            assert await asyncio.to_thread(lambda: read_bodies(**options)) == [b"secret"]
            for code in (RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET):
                (asked,) = cluster.broker.received(code)
                assert asked.fields[ACCESS_KEY] == "me"
                assert SIGNATURE in asked.fields
            with pytest.raises(TransportError):  # in the clear
                await asyncio.to_thread(lambda: read_bodies(nameServer=address, timeoutMs="300"))
        finally:
            await broker.stop(grace_seconds=0.01)
            await name_server.stop(grace_seconds=0.01)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = Access("n:1", tls=True, tls_ca_file=str(tmp_path / "nowhere.pem"))
    with pytest.raises(ConfigError, match=r"the TLS files cannot be used.*on every executor"):
        missing.client_config()


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Access("n:1", access_key="me", secret_key="hidden", security_token="hidden"))
