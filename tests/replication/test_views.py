"""What operators see of copying: the same facts from the master's side and from the slave's."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from typing import TYPE_CHECKING, Any

from orbitmq.protocol.bodies.admin import HaStatus
from orbitmq.protocol.codes import RequestCode
from tests.broker.kit import Wire
from tests.replication.kit import copied, group_of_brokers, until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker

METRICS: dict[str, Any] = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


async def status(broker: Broker) -> HaStatus:
    assert broker.address is not None
    client = Wire(broker.address)
    answer = await client.ask(RequestCode.GET_BROKER_HA_STATUS)
    await client.close()
    return HaStatus.from_json(answer.body)


async def figures(broker: Broker) -> dict[str, float]:
    """By name; of labels, none matters here."""
    assert broker.metrics_address is not None
    page = await asyncio.to_thread(urllib.request.urlopen, f"http://{broker.metrics_address}/metrics")
    text = page.read().decode()
    page.close()
    return {name: float(value) for name, value in re.findall(r"(?m)^(orbitmq_\w+)\{.*\} (\S+)$", text)}


async def test_master_and_slave_tell_how_far_the_copy_is(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master(**METRICS)
        assert (await figures(master))["orbitmq_slaves_in_sync"] == 0
        slave = await group.slave(**METRICS)
        assert master.address is not None
        client = Wire(master.address)
        assert (await client.send("T", b"x" * 1000)).code == 0
        await client.close()
        await copied(master, slave)
        slaves = master.state.slaves
        await until(lambda: [s.acked for s in slaves.states()] == [master.state.store.log.end], "the master knows it")

        as_master, as_slave = await status(master), await status(slave)
        assert as_master.master
        assert as_master.in_sync_slave_nums == 1
        [connection] = as_master.ha_connection_info
        end = as_master.master_commit_log_max_offset
        assert (connection.slave_ack_offset, connection.diff, connection.in_sync) == (end, 0, True)
        assert not as_slave.master
        assert as_slave.ha_client_runtime_info.max_offset == end
        assert as_slave.ha_client_runtime_info.activated
        seen = await figures(master)
        assert (seen["orbitmq_slaves_in_sync"], seen["orbitmq_slave_lag_bytes"]) == (1, 0)
        seen = await figures(slave)
        assert (seen["orbitmq_master_connected"], seen["orbitmq_master_lag_bytes"]) == (1, 0)

        await group.stop(slave)
        await until(lambda: not slaves.states(), "the master sees it leave")
        assert "orbitmq_slave_lag_bytes" not in await figures(master)


async def test_a_slave_without_its_master_says_so_and_what_it_lacks(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        slave = await group.slave(**METRICS)
        await copied(master, slave)
        await group.stop(master)
        copying = slave.state.copying
        assert copying is not None
        await until(lambda: not copying.is_connected, "the slave sees it leave")
        copying.master_end = slave.state.store.log.end + 500
        seen = await figures(slave)
        assert (seen["orbitmq_master_connected"], seen["orbitmq_master_lag_bytes"]) == (0, 500)
        assert not (await status(slave)).ha_client_runtime_info.activated
