"""The broker as a whole: builds the parts, starts them, stops them; nothing else. Java: BrokerController"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from typing import TYPE_CHECKING, Final

from orbitmq.access.opening import open_gate, open_users, own_signature
from orbitmq.broker import names, totals
from orbitmq.broker.advertised import advertised_host
from orbitmq.broker.cleaning import Cleaning
from orbitmq.broker.clients import Clients
from orbitmq.broker.cold_data import ColdDataLimits
from orbitmq.broker.compaction import CompactedTopics
from orbitmq.broker.consumer_filters import ConsumerFilters
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.delayed import DelayedMessages
from orbitmq.broker.durability import Durability
from orbitmq.broker.exporter import Exporter
from orbitmq.broker.filter_servers import FilterServers
from orbitmq.broker.groups import Groups
from orbitmq.broker.half_messages import HalfMessages
from orbitmq.broker.handlers.send import Receipts
from orbitmq.broker.leases.lease_log import LeaseLog
from orbitmq.broker.leases.open_leases import OpenLeases
from orbitmq.broker.leases.ordered import OrderedLeases
from orbitmq.broker.leases.popping import Popping
from orbitmq.broker.leases.positions import restore_positions
from orbitmq.broker.leases.reviving import Reviving
from orbitmq.broker.leases.serving import Serving
from orbitmq.broker.leases.settling import Settling
from orbitmq.broker.long_poll import BUCKET_SECONDS
from orbitmq.broker.metrics import Metrics
from orbitmq.broker.name_servers import NameServers
from orbitmq.broker.progress import Progress
from orbitmq.broker.pulling import Pulling
from orbitmq.broker.queue_locks import QueueLocks
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.master import Slaves
from orbitmq.broker.replication.metadata import MasterTables
from orbitmq.broker.replication.slave import Copying
from orbitmq.broker.request_modes import RequestModes
from orbitmq.broker.routes import NOT_ON_FAST_PORT, State, build_express, build_routes
from orbitmq.broker.sending import Sending
from orbitmq.broker.statistics import SAMPLE_SECONDS, Statistics
from orbitmq.broker.timers import Timers
from orbitmq.broker.topic_routes import TopicRoutes
from orbitmq.broker.topics import Topics
from orbitmq.broker.totals import Totals
from orbitmq.clock import Clock, SystemClock
from orbitmq.errors import ConfigError
from orbitmq.message.hosts import pack_host
from orbitmq.message.ids import UniqueIds
from orbitmq.message.record import decode_entry
from orbitmq.storage import tables
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.store import Store
from orbitmq.storage.timer_store import TimerStore
from orbitmq.tasks import Tasks, every
from orbitmq.transport.address import Address
from orbitmq.transport.limits import Limits
from orbitmq.transport.pool import Pool
from orbitmq.transport.server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.files import Disk
    from orbitmq.transport.connection import Connection, Routes
    from orbitmq.transport.express import ExpressRoutes
    from orbitmq.transport.network import Network

logger = logging.getLogger(__name__)

_CLIENT_SCAN_SECONDS: Final = 10.0
_FAST_PORT_DISTANCE: Final = 2
_FREE_QUEUES_SECONDS: Final = 0.1
_PROTECT_SECONDS: Final = 180.0
_FORGET_TIMERS_SECONDS: Final = 180.0
_SAVE_FILTERS_SECONDS: Final = 10.0
_STALL_WATCH_SECONDS: Final = 0.1
_CLIENTS_WAIT_MS: Final = 3000  # for the answer to a send, unless they say otherwise


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
    ) -> None:
        self.configuration = configuration
        self.address: Address | None = None
        self.metrics_address: Address | None = None  # where /metrics is, if it is anywhere
        self._clock = clock or SystemClock()
        self._disk = disk or LocalDisk()
        self._network = network
        self._random = randomness or random.Random()
        self._tasks = Tasks()
        self._servers: list[Server] = []
        self._exporter: Exporter | None = None
        self._master_tables: MasterTables | None = None  # of a slave

    async def start(self) -> Address:
        settings = self.configuration.settings
        name_servers = NameServers(self.configuration)
        await name_servers.refresh()
        advertised = advertised_host(settings, name_servers.addresses)
        self.state = self._open(Address(advertised.host, settings.listen_port), name_servers)
        try:
            self._connect_parts()  # before anyone can send: what is appended unheard would stay unseen
            routes, express = build_routes(self.state), build_express(self.state)
            ha_port = await self._open_ha_port()
            listening = await self._listen(routes, express, settings.bind_address, settings.listen_port)
            self.address = Address(advertised.host, listening.port)
            self._settle_at(self.address, ha_port)
            logger.info("advertising %s: %s", self.address, advertised.reason)
            await self._open_fast_port(routes, express, settings.bind_address, listening.port - _FAST_PORT_DISTANCE)
            if settings.metrics_exporter_type == "PROM":
                await self._export_metrics(settings.metrics_prom_exporter_host or settings.bind_address)
        except BaseException:
            await self._close_ports()
            if self.state.timers is not None:
                self.state.timers.wheel.close()
            await asyncio.to_thread(self.state.store.close)
            raise
        self._start_jobs()
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
        await state.cleaning.stop()
        await self._close_ports()
        if state.copying is not None:
            state.copying.disconnect()
            await self._master_pool.close()
        else:
            state.half_messages.record_decisions()
            state.half_messages.save_progress()
        for part in (state.topics, state.groups, state.offsets, state.filters, state.ordered_leases, state.delayed):
            await part.save()
        if state.timers is not None:
            state.timers.stop()
        state.store.dispatch()
        if state.compacted is not None:
            state.compacted.stop()
        state.store.listen(None)
        state.store.on_appended = state.store.on_flushed = None
        state.store.close()

    async def _close_ports(self) -> None:
        self.state.slaves.stop()
        if self._exporter is not None:
            await self._exporter.stop()
        for server in self._servers:
            await server.stop()

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

    # ---- building

    def _open(self, address: Address, name_servers: NameServers) -> State:
        configuration, clock = self.configuration, self._clock
        settings = configuration.settings
        config = settings.storage_config()
        folder = config.config_path
        users = open_users(settings, folder / "auth")
        gate = open_gate(settings, users, settings.broker_cluster_name, settings.access_file(), clock)
        topics = Topics(JsonFile(self._disk, folder / tables.TOPICS, tables.TopicTable), configuration, clock)
        groups = Groups(JsonFile(self._disk, folder / tables.GROUPS, tables.GroupTable), configuration, clock)
        offsets = ConsumerOffsets(self._offsets_file(folder), configuration, clock)
        filters = ConsumerFilters(
            JsonFile(self._disk, folder / tables.FILTERS, tables.FilterTable), configuration, clock
        )
        host = pack_host(*address)
        store = Store(config, host, clock=clock, disk=self._disk, is_batch_topic=topics.is_batch)
        store.start()
        logger.info(
            "opened the store %s: %d topics, log from %d to %d, last stop %s",
            config.directory, len(topics.all()), store.log.start, store.log.end, store.last_exit.name.lower(),
        )  # fmt: skip
        statistics = Statistics(clock)
        locks = QueueLocks(clock)
        clients = Clients(clock, self._wants_notices)
        unique_ids = UniqueIds(clock, host[:-4], os.getpid(), self._random.getrandbits(32))
        sending = Sending(store, topics, groups, locks, configuration, statistics, clock, unique_ids, self._random)
        timers = self._open_timers(store, sending, statistics) if settings.timer_wheel_enable else None
        compacted = self._open_compacted(store, topics) if settings.enable_compaction else None
        copying = self._copying(store) if settings.is_slave else None
        registration = Registration(topics, configuration, name_servers, copying.follow if copying else None)
        slaves = Slaves(store, configuration, self._network)
        durability = Durability(
            store,
            settings.sync_flush_timeout / 1000,
            settings.send_thread_pool_queue_capacity,
            slaves,
            settings.copies_awaited,
        )
        self._lease_log = LeaseLog(store, configuration, statistics, clock, host)
        open_leases = OpenLeases()
        if not settings.is_slave:
            offsets.log_end = lambda: store.log.end
            restore_positions(store, self._lease_log, offsets, settings.revive_queue_num)
        ordered = OrderedLeases(JsonFile(self._disk, folder / tables.ORDERS, tables.OrderTable), topics, groups, clock)
        popping = Popping(
            store,
            topics,
            offsets,
            self._lease_log,
            open_leases,
            ordered,
            configuration,
            statistics,
            clock,
            self._random,
        )
        return State(
            configuration=configuration,
            clock=clock,
            randomness=self._random,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            filters=filters,
            clients=clients,
            locks=locks,
            statistics=statistics,
            sending=sending,
            receipts=Receipts(settings.region_id, trace_on=settings.trace_on),
            durability=durability,
            slaves=slaves,
            copying=copying,
            users=users,
            gate=gate,
            pulling=Pulling(store, topics, groups, clients, offsets, configuration, statistics, compacted, filters),
            delayed=DelayedMessages(
                JsonFile(self._disk, folder / tables.DELAYS, tables.DelayTable), store, sending, clock
            ),
            timers=timers,
            compacted=compacted,
            half_messages=HalfMessages(store, topics, offsets, clients, sending, configuration, clock, host),
            registration=registration,
            totals=Totals(clock, statistics, topics, settings.broker_cluster_name),
            progress=Progress(store, topics, groups, offsets, clients, statistics, configuration),
            cleaning=Cleaning(store, configuration, [store, *([timers.wheel.log] if timers is not None else [])]),
            filter_servers=FilterServers(registration),
            cold_data=ColdDataLimits(),
            open_leases=open_leases,
            ordered_leases=ordered,
            pops=Serving(popping, ordered, topics, groups, durability, configuration, clock, self._tasks.start),
            settling=Settling(offsets, self._lease_log, open_leases, ordered, configuration, statistics, clock),
            reviving=Reviving(
                store, topics, groups, offsets, self._lease_log, open_leases, sending, configuration, statistics, clock
            ),
            request_modes=RequestModes(JsonFile(self._disk, folder / tables.REQUEST_MODES, tables.RequestModeTable)),
            topic_routes=TopicRoutes(topics, name_servers, settings.broker_name),
        )

    def _offsets_file(self, folder: Path) -> JsonFile[tables.OffsetTable]:
        """Light queues have a file of their own, for all offsets; it begins with what the usual one knows."""
        usual = JsonFile(self._disk, folder / tables.OFFSETS, tables.OffsetTable)
        if not self.configuration.settings.enable_lmq:
            return usual
        light = JsonFile(self._disk, folder / tables.LIGHT_OFFSETS, tables.OffsetTable)
        if self._disk.stat(light.path) is None:
            light.save(usual.load())
        return light

    def _open_timers(self, store: Store, sending: Sending, statistics: Statistics) -> Timers:
        def is_timer_record(commit_log_offset: int, size: int) -> bool:
            record = store.record_at(commit_log_offset)
            if record is None or len(record) != size:
                return False
            return decode_entry(record, 0, commit_log_offset).topic == names.TIMER_TOPIC

        config, clock = store.config, self._clock
        wheel = TimerStore(self._disk, config, clock.now_ms(), store.last_exit, is_timer_record)
        file = JsonFile(self._disk, config.config_path / tables.TIMER_COUNTS, tables.TimerCountTable)
        return Timers(wheel, file, store, sending, self.configuration, statistics, clock, self._random)

    def _open_compacted(self, store: Store, topics: Topics) -> CompactedTopics:
        path = store.config.compaction_path / tables.COMPACTED
        return CompactedTopics(JsonFile(self._disk, path, tables.CompactedTable), store, topics)

    def _copying(self, store: Store) -> Copying:
        self._master_pool = Pool(network=self._network, sign=own_signature(self.configuration.settings))
        return Copying(store, self.configuration, self._clock, self._master_pool, self._network)

    def _settle_at(self, address: Address, ha_port: int) -> None:
        """Now that the ports are known, every record and answer can say where this broker is."""
        settings = self.configuration.settings
        host = pack_host(*address)
        self.state.store.settle_at(host)
        self.state.receipts.settle_at(host)
        self.state.half_messages.settle_at(host)
        self._lease_log.settle_at(host)
        self.state.registration.settle_at(address, Address(settings.broker_ip2 or address.host, ha_port))

    async def _listen(self, routes: Routes, express: ExpressRoutes, host: str, port: int) -> Address:
        settings = self.configuration.settings
        server = Server(
            routes,
            express=express,
            limits=Limits(
                idle_seconds=settings.server_channel_max_idle_time_seconds, backlog=settings.server_socket_backlog
            ),
            tls=self.configuration.tls,
            on_close=self._connection_closed,
            network=self._network,
        )
        address = await server.start(host, port)
        self._servers.append(server)
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
            self.configuration, self._clock, state.timers, state.reviving, state.open_leases,
        )  # fmt: skip
        self._exporter = Exporter(metrics, state.store, self._network)
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
        if state.timers is not None:
            state.sending.is_moment_full = state.timers.is_congested
            state.reviving.timer_done_until_ms = state.timers.done_until_ms
        state.ordered_leases.on_free = state.settling.on_free = state.pops.queue_is_free

    def _message_arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        if topic == names.DELAY_TOPIC:
            self.state.delayed.message_arrived()
        elif topic == names.TIMER_TOPIC and self.state.timers is not None:
            self.state.timers.message_arrived()
        elif self.state.compacted is not None:
            self.state.compacted.follow(topic, queue_id)
        self.state.pulling.held.arrived(topic, queue_id)
        self.state.pops.arrived(topic, queue_id)
        if self._master_tables is not None:
            self._master_tables.message_arrived(topic)

    def _wants_notices(self, group: str) -> bool:
        config = self.state.groups.get(group)
        return self.configuration.settings.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )

    # ---- jobs

    def _start_jobs(self) -> None:
        state, settings, start = self.state, self.configuration.settings, self._tasks.start
        start(state.registration.run(), "registering with name servers")
        start(state.registration.follow_name_servers(), "following name servers")
        if state.copying is None:
            start(state.slaves.watch(), "watching slaves")
            start(state.delayed.run(), "delivering delayed messages")
            if state.timers is not None:
                start(state.timers.run(), "delivering timer messages")
                what = "saving timers"
                start(every(settings.timer_flush_interval_ms / 1000, state.timers.save, what), what)
                start(every(_FORGET_TIMERS_SECONDS, self._forget_timers, "counting timers"), "counting timers")
            start(state.half_messages.run(), "asking about open transactions")
            start(state.reviving.run(), "handing out again what nobody acknowledged")
        else:
            self._master_tables = MasterTables(
                state.copying,
                self._master_pool,
                state.topics,
                state.groups,
                state.offsets,
                state.delayed,
                state.request_modes,
            )
            state.copying.before_copying = self._master_tables.sync
            start(state.copying.run(), "copying the master's log")
            start(self._master_tables.run(), "copying the master's tables")
        if state.compacted is not None:
            seconds = settings.flush_interval_consume_queue / 1000
            start(every(seconds, state.compacted.sync, "saving compacted topics"), "saving compacted topics")
            seconds = settings.compaction_schedule_internal / 1000
            start(every(seconds, state.compacted.compact, "compacting topics"), "compacting topics")
        start(self._watch_for_stalls(), "watching for stalls")
        for what, seconds, action in (
            ("answering held pulls", BUCKET_SECONDS, state.pulling.held.expire),
            ("answering held pops", BUCKET_SECONDS, state.pops.expire),
            ("freeing ordered queues", _FREE_QUEUES_SECONDS, state.ordered_leases.free_due),
            ("sampling statistics", SAMPLE_SECONDS, state.statistics.sample),
            ("sampling totals", totals.SAMPLE_SECONDS, state.totals.sample),
            ("stopping slow readers", _PROTECT_SECONDS, state.progress.protect_broker),
            ("dropping silent clients", _CLIENT_SCAN_SECONDS, self._expire_clients),
            ("cleaning the store", settings.clean_resource_interval / 1000, state.cleaning.round),
            ("saving consumer offsets", settings.flush_consumer_offset_interval / 1000, state.offsets.save),
            ("saving filters", _SAVE_FILTERS_SECONDS, state.filters.save),
            ("saving ordered leases", settings.flush_consumer_offset_interval / 1000, state.ordered_leases.save),
            ("saving delay offsets", settings.flush_delay_offset_interval / 1000, state.delayed.save),
        ):
            start(every(seconds, action, what), what)

    def _forget_timers(self) -> None:
        assert self.state.timers is not None
        self.state.timers.forget_topics_but(set(self.state.topics.all()))

    def _expire_clients(self) -> None:
        self.state.clients.expire(self.configuration.settings.channel_expired_timeout)

    async def _watch_for_stalls(self) -> None:
        """When the broker stood still for longer than clients wait, what queued up meanwhile is refused: nobody waits for it."""
        loop, sending = asyncio.get_running_loop(), self.state.sending
        while True:
            due = loop.time() + _STALL_WATCH_SECONDS
            await asyncio.sleep(_STALL_WATCH_SECONDS)
            late_ms = round((loop.time() - due) * 1000)
            limit_ms = self.configuration.settings.os_page_cache_busy_time_out_mills + _CLIENTS_WAIT_MS
            sending.stalled_ms = late_ms if late_ms > limit_ms else 0
            if sending.stalled_ms:
                logger.warning("the broker stood still for %d ms: is the disk or the machine overloaded?", late_ms)
