"""A slave whose copying stumbles, over whatever it is, says so and begins again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.replication.agreement import master_log
from orbitmq.errors import BodyError
from orbitmq.protocol.bodies.route import KvTable
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import ok
from orbitmq.transport.address import Address
from orbitmq.transport.pool import Pool
from orbitmq.transport.server import Server
from tests.replication.kit import copied, group_of_brokers, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection
    from tests.replication.kit import Group


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with group_of_brokers(tmp_path) as brokers:
        yield brokers


@pytest.mark.parametrize("host", ["127.0.0..1", "x" * 64])
async def test_a_name_that_no_host_can_have_does_not_end_the_copying(
    group: Group, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    master, slave = await group.master(), await group.slave()
    copying = slave.state.copying
    assert copying is not None
    await until(lambda: copying.is_connected, "the slave copies")
    copying.follow(master.address, Address(host, 10912))  # what a name server says of brokerIP2
    await until(lambda: "no host can have the name" in caplog.text, "the slave says what is wrong")
    master.state.store.append("T", 0, b"one", b"", 0, bytes(8), 0, 0, 0)
    await copied(master, slave)
    assert not any(record.exc_info for record in caplog.records)


async def test_whatever_goes_wrong_the_copying_begins_again(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await group.master(), await group.slave()
    copying = slave.state.copying
    assert copying is not None
    await until(lambda: copying.is_connected, "the slave copies")

    async def stumbles(address: object) -> None:
        raise AssertionError("it was there a moment ago")

    with monkeypatch.context() as changed:
        changed.setattr(copying, "_copy", stumbles)
        copying.disconnect()
        await until(lambda: "it was there a moment ago" in caplog.text, "the slave stumbles")
    assert any(record.exc_info for record in caplog.records)
    master.state.store.append("T", 0, b"one", b"", 0, bytes(8), 0, 0, 0)
    await copied(master, slave)


@pytest.mark.parametrize("name", ["commitLogMinOffset", "commitLogMaxOffset"])
async def test_a_master_that_tells_of_its_log_in_words_is_refused(name: str) -> None:
    async def tell(request: Command, _connection: Connection) -> Command:
        return ok(body=KvTable(table={name: "somewhere"}).to_json())

    server, pool = Server({RequestCode.GET_BROKER_RUNTIME_INFO: tell}), Pool()
    address = await server.start("127.0.0.1", 0)
    with pytest.raises(BodyError, match="does not say in numbers where its log is"):
        await master_log(pool, address)
    await pool.close()
    await server.stop()
