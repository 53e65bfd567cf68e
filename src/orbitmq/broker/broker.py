"""The broker as a whole: builds the parts, starts them, stops them; nothing else. Java: BrokerController"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.accelerated import ways
from orbitmq.access.needs import Action, topic_need
from orbitmq.access.proxies import TrustedProxies
from orbitmq.broker import names
from orbitmq.broker.advertised import advertised_host
from orbitmq.broker.jobs import start_jobs
from orbitmq.broker.metrics import Metrics
from orbitmq.broker.name_servers import NameServers
from orbitmq.broker.opening import Opener
from orbitmq.broker.routes import NOT_ON_FAST_PORT, build_express, build_routes, build_swift
from orbitmq.clock import Clock, SystemClock
from orbitmq.errors import ConfigError
from orbitmq.message.hosts import pack_host
from orbitmq.protocol.codes import RequestCode
from orbitmq.storage.files import LocalDisk
from orbitmq.tasks import Tasks
from orbitmq.transport.address import Address
from orbitmq.transport.doorman import Doorman
from orbitmq.transport.exporter import Exporter
from orbitmq.transport.limits import Limits
from orbitmq.transport.server import Server

if TYPE_CHECKING:
    import random

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.files import Disk
    from orbitmq.storage.threads import Threads
    from orbitmq.transport.connection import Connection, Routes
    from orbitmq.transport.express import ExpressRoutes
    from orbitmq.transport.network import Network

logger = logging.getLogger(__name__)

_FAST_PORT_DISTANCE: Final = 2


class Broker:
    """`async with Broker(configuration) as broker: broker.address`"""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        network: Network | None = None,
        randomness: random.Random | None = None,
        threads: Threads | None = None,
    ) -> None:
        self.configuration = configuration
        self.address: Address | None = None
        self.address_reason = ""  # why it is that one which others are told
        self.metrics_address: Address | None = None  # where /metrics is, if it is anywhere
        self._clock = clock or SystemClock()
        self._network = network
        self._opener = Opener(configuration, self._clock, disk or LocalDisk(), network, randomness, threads)
        self._tasks = Tasks()
        self._servers: list[Server] = []
        self._exporter: Exporter | None = None

    async def start(self) -> Address:
        settings = self.configuration.settings
        name_servers = NameServers(self.configuration)
        await name_servers.refresh()
        advertised = advertised_host(settings, name_servers.addresses)
        self.state = self._opener.open(Address(advertised.host, settings.listen_port), name_servers, self._tasks.start)
        try:
            self._connect_parts()  # before anyone can send: what is appended unheard would stay unseen
            self._doorman = Doorman(lambda: self.configuration.settings, self._clock, self.state.refusals)
            is_guarded = self.state.gate is not None
            self._proxies = TrustedProxies(lambda: self.configuration.settings, is_guarded=is_guarded)
            await self.state.topics.keep_system_topics()
            routes, express = build_routes(self.state), build_express(self.state)
            ha_port = await self._open_ha_port()
            listening = await self._listen(routes, express, settings.bind_address, settings.listen_port)
            self.address = Address(advertised.host, listening.port)
            self.address_reason = advertised.reason
            self._settle_at(self.address, ha_port)
            logger.info("advertising %s: %s", self.address, advertised.reason)
            logger.info("the busiest loops run %s", ways())
            await self._open_fast_port(routes, express, settings.bind_address, listening.port - _FAST_PORT_DISTANCE)
            if settings.metrics_exporter_type == "PROM":
                await self._export_metrics(settings.metrics_prom_exporter_host or settings.bind_address)
        except BaseException:
            await self._close_ports()
            if self.state.timers is not None:
                self.state.timers.wheel.close()
            self.state.delayed.close()
            await asyncio.to_thread(self.state.store.close)
            raise
        if self.state.handing_back is not None:
            await self.state.handing_back.take_back(self.address, self.state.registration.ha_address)
        start_jobs(self.state, self._tasks.start)
        await self.state.registration.start()
        return self.address

    async def stop(self) -> None:
        """Nothing new comes in, what came in is answered, everything is saved, and the name servers know."""
        state = self.state
        await state.registration.stop()
        await state.topic_routes.close()
        state.pulling.held.release_all()
        state.pops.release_all()
        await self._tasks.close()
        for speaker in (state.members, state.acting, state.handing_back):
            if speaker is not None:
                await speaker.close()
        await state.cleaning.stop()
        await self._close_ports()
        if state.copying is not None:
            await state.copying.close()
        else:
            state.half_messages.stop()
        for part in (state.topics, state.groups, state.offsets, state.filters, state.ordered_leases, state.delayed):
            await part.save()
        state.delayed.close()
        if state.timers is not None:
            state.timers.stop()
        state.store.dispatch()
        if state.compacted is not None:
            await state.compacted.stop()
        state.store.listen(None)
        state.store.on_appended = state.store.on_flushed = None
        state.store.close()

    async def _close_ports(self) -> None:
        if self._exporter is not None:
            await self._exporter.stop()
        for server in self._servers:
            await server.stop()
        self.state.slaves.stop()  # after those who wait for them

    def drop_connections(self) -> None:
        """Cut all of them at once, for tests of what clients do then."""
        for server in self._servers:
            for connection in list(server.connections):
                connection.abort()
        self.state.slaves.drop_connections()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- ports and connections

    def _settle_at(self, address: Address, ha_port: int) -> None:
        """Now that the ports are known, every record and answer can say where this broker is."""
        settings = self.configuration.settings
        host = pack_host(*address)
        self.state.store.settle_at(host)
        self.state.receipts.settle_at(host)
        self.state.half_messages.settle_at(host)
        self.state.lease_log.settle_at(host)
        self.state.registration.settle_at(address, Address(settings.broker_ip2 or address.host, ha_port))

    async def _listen(self, routes: Routes, express: ExpressRoutes, host: str, port: int) -> Address:
        settings = self.configuration.settings
        swift, reader = build_swift(self.state, routes.keys())
        server = Server(
            routes,
            express=express,
            swift=swift,
            reader=reader,
            limits=Limits(
                idle_seconds=settings.server_channel_max_idle_time_seconds, backlog=settings.server_socket_backlog
            ),
            tls=self.configuration.tls,
            times=self.state.times,
            congestion=self.state.congestion,
            on_close=self._connection_closed,
            network=self._network,
            doorman=self._doorman,
            believes_proxy=self._proxies.believes,
        )
        address = await server.start(host, port)
        self._servers.append(server)
        self.configuration.when_changed.append(server.limits_changed)
        return address

    async def _open_ha_port(self) -> int:
        """Where slaves copy the log from: next to a port that was asked for, anywhere if that is free to choose."""
        settings = self.configuration.settings
        port = settings.ha_listen_port or (settings.listen_port and settings.listen_port + 1)
        if settings.is_slave:  # nobody copies a copy
            return port
        return (await self.state.slaves.start(settings.bind_address, port)).port

    async def _open_fast_port(self, routes: Routes, express: ExpressRoutes, host: str, port: int) -> None:
        """Old clients send to listenPort - 2 unasked. Where it is taken, the others still work."""
        served = {code: handler for code, handler in routes.items() if code not in NOT_ON_FAST_PORT}
        quickly = {key: handler for key, handler in express.items() if key[0] not in NOT_ON_FAST_PORT}
        try:
            await self._listen(served, quickly, host, port)
        except ConfigError as error:
            logger.warning("clients with the VIP channel switched on cannot connect: %s", error)

    async def _export_metrics(self, host: str) -> None:
        state = self.state
        metrics = Metrics(
            state.store, state.topics, state.groups, state.clients, state.progress, state.statistics,
            self.configuration, self._clock, state.timers, state.reviving, state.open_leases, state.refusals,
            state.half_messages, state.times, state.service_times, state.slaves, state.copying,
        )  # fmt: skip
        health = state.store.health
        self._exporter = Exporter(
            metrics.text, self._network, unready=lambda: str(health.refuse()) if health.refuses_writes else None
        )
        self.metrics_address = await self._exporter.start(host, self.configuration.settings.metrics_prom_exporter_port)

    def _connection_closed(self, connection: Connection) -> None:
        self.state.clients.connection_closed(connection)
        self.state.filter_servers.connection_closed(connection)

    def _connect_parts(self) -> None:
        state, loop = self.state, asyncio.get_running_loop()

        def dispatch() -> None:
            state.store.dispatch()
            state.slaves.push()
            if state.copying is not None:
                state.copying.report()

        def dispatch_soon() -> None:
            loop.call_soon(dispatch)

        def dispatch_from_flusher() -> None:
            loop.call_soon_threadsafe(dispatch)

        state.store.mark_with(state.filters.bitmap)
        state.clients.on_subscribed = state.filters.register
        state.clients.on_group_gone = state.filters.unregister
        state.store.listen(self._message_arrived)
        state.store.on_appended = dispatch_soon
        state.store.on_flushed = dispatch_from_flusher
        state.topics.when_changed(state.registration.topics_changed)
        state.sending.on_half_message = state.half_messages.taken
        state.sending.is_awaited = state.registration.is_awaited
        if (gate := state.gate) is not None:
            state.half_messages.may_see = lambda producer, topic: gate.allows(
                RequestCode.HEART_BEAT,
                producer.access_key,
                topic_need(topic, (Action.PUB,)),
                producer.connection.peer.host,
            )
        if state.timers is not None:
            state.sending.is_moment_full = state.timers.is_congested
            state.reviving.timer_done_until_ms = state.timers.done_until_ms
        state.ordered_leases.on_free = state.settling.on_free = state.pops.queue_is_free

    def _message_arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        if topic == names.DELAY_TOPIC:
            self.state.delayed.message_arrived(queue_id)
        elif topic == names.TIMER_TOPIC and self.state.timers is not None:
            self.state.timers.message_arrived()
        elif self.state.compacted is not None:
            self.state.compacted.follow(topic, queue_id)
        self.state.pulling.held.arrived(topic, queue_id)
        self.state.pops.arrived(topic, queue_id)
        if self.state.master_tables is not None:
            self.state.master_tables.message_arrived(topic)
