"""Figures about the whole broker. Java: AdminBrokerProcessor"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.broker.runtime_info import runtime_info, store_info
from orbitmq.errors import RequestFailed
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.admin import StatsData, StatsWindow
from orbitmq.protocol.bodies.route import KvTable
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.admin import StatsName

if TYPE_CHECKING:
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.service_times import ServiceTimes
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics, Window
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.totals import Totals
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection


async def broker_runtime_info(
    store: Store,
    stats: Statistics,
    totals: Totals,
    service_times: ServiceTimes,
    delayed: DelayedMessages,
    timers: Timers | None,
    configuration: BrokerConfiguration,
    clock: Clock,
    request: Command,
    connection: Connection,
) -> Command:
    about_broker = runtime_info(stats, totals, service_times, delayed, timers, configuration, clock)
    about_store = await asyncio.to_thread(store_info, store)
    if request.version < versions.FIRST_OF_5:
        about_broker["getTransferedTps"] = about_broker["getTransferredTps"]  # tools of 4.x know this spelling only
    return ok(body=KvTable(table=dict(sorted({**about_broker, **about_store}.items()))).to_json())


async def stats_data(stats: Statistics, request: Command, connection: Connection) -> Command:
    header = request.read(StatsName)
    counter = stats.find(header.stats_name, header.stats_key)
    if counter is None:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name[:300]}> <{header.stats_key[:300]}> not exist"
        )
    data = StatsData(
        stats_minute=_window(counter.minute()), stats_hour=_window(counter.hour()), stats_day=_window(counter.day())
    )
    return ok(body=data.to_json())


def _window(window: Window) -> StatsWindow:
    return StatsWindow(sum=window.total, tps=window.per_second, avgpt=window.per_time)
