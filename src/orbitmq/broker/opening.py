"""Opening a broker's parts: tables and store from its folder, and what works on them. Nothing runs yet when they are open."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from orbitmq.access.opening import open_gate, open_users, own_signature
from orbitmq.access.plain_gate import PlainGate
from orbitmq.broker import names
from orbitmq.broker.cleaning import Cleaning
from orbitmq.broker.clients import Clients
from orbitmq.broker.cold_data import ColdDataLimits
from orbitmq.broker.compaction import CompactedTopics
from orbitmq.broker.consumer_filters import ConsumerFilters
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.delayed import DelayedMessages
from orbitmq.broker.durability import Durability
from orbitmq.broker.filter_servers import FilterServers
from orbitmq.broker.groups import Groups
from orbitmq.broker.half_messages import HalfMessages
from orbitmq.broker.leases.lease_log import LeaseLog
from orbitmq.broker.leases.open_leases import OpenLeases
from orbitmq.broker.leases.ordered import OrderedLeases
from orbitmq.broker.leases.popping import Popping
from orbitmq.broker.leases.positions import restore_positions
from orbitmq.broker.leases.reviving import Reviving
from orbitmq.broker.leases.serving import Serving
from orbitmq.broker.leases.settling import Settling
from orbitmq.broker.name_servers import NameServers
from orbitmq.broker.progress import Progress
from orbitmq.broker.pulling import Pulling
from orbitmq.broker.queue_locks import QueueLocks
from orbitmq.broker.receipts import Receipts
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.master import Slaves
from orbitmq.broker.replication.metadata import MasterTables
from orbitmq.broker.replication.slave import Copying
from orbitmq.broker.request_modes import RequestModes
from orbitmq.broker.sending import Sending
from orbitmq.broker.state import State
from orbitmq.broker.statistics import Statistics
from orbitmq.broker.timers import Timers
from orbitmq.broker.topic_routes import TopicRoutes
from orbitmq.broker.topics import Topics
from orbitmq.broker.totals import Totals
from orbitmq.clock import Clock
from orbitmq.message.hosts import pack_host
from orbitmq.message.ids import UniqueIds
from orbitmq.message.record import decode_entry
from orbitmq.storage import delay_progress, tables
from orbitmq.storage.delay_progress import DelayProgress
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.store import Store
from orbitmq.storage.timer_store import TimerStore
from orbitmq.transport.address import Address
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.pool import Pool
from orbitmq.transport.rates import Rates

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from orbitmq.access.gate import Door
    from orbitmq.broker.name_servers import NameServers
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.protocol.command import Command
    from orbitmq.storage.files import Disk
    from orbitmq.storage.threads import Threads
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.network import Network

    StartTask = Callable[[Coroutine[Any, Any, Any], str], object]

logger = logging.getLogger(__name__)


class Opener:
    def __init__(
        self,
        configuration: BrokerConfiguration,
        clock: Clock,
        disk: Disk,
        network: Network | None,
        randomness: random.Random,
        threads: Threads | None = None,
    ) -> None:
        self._configuration = configuration
        self._clock = clock
        self._disk = disk
        self._network = network
        self._random = randomness
        self._threads = threads

    def open(self, address: Address, name_servers: NameServers, start_task: StartTask) -> State:
        """Everything, ready to be connected and started. `address` is what clients will be told, its port perhaps not yet."""
        configuration, clock = self._configuration, self._clock
        settings = configuration.settings
        config = settings.storage_config()
        folder = config.config_path
        users = open_users(settings, folder / "auth", settings.access_file())
        cluster = settings.broker_cluster_name
        refusals = Refusals()
        rates = Rates("user", lambda: configuration.settings, clock, refusals)
        configuration.when_changed.append(rates.refresh)
        gate: Door | None = (
            PlainGate(settings.access_file(), cluster, clock, rates)
            if settings.acl_enable
            else open_gate(settings, users, cluster, rates)
        )
        topics = Topics(JsonFile(self._disk, folder / tables.TOPICS, tables.TopicTable), configuration, clock, refusals)
        groups = Groups(JsonFile(self._disk, folder / tables.GROUPS, tables.GroupTable), configuration, clock, refusals)
        offsets = ConsumerOffsets(self._offsets_file(folder), configuration, clock)
        filters = ConsumerFilters(
            JsonFile(self._disk, folder / tables.FILTERS, tables.FilterTable), configuration, clock
        )
        host = pack_host(*address)
        store = Store(config, host, clock=clock, disk=self._disk, threads=self._threads, is_batch_topic=topics.is_batch)
        store.start()
        logger.info(
            "opened the store %s: %d topics, log from %d to %d, last stop %s",
            config.directory, len(topics.all()), store.log.start, store.log.end, store.last_exit.name.lower(),
        )  # fmt: skip
        statistics = Statistics(clock)
        locks = QueueLocks(clock)
        clients = Clients(clock, partial(_wants_notices, configuration, groups))
        unique_ids = UniqueIds(clock, host[:-4], os.getpid(), self._random.getrandbits(32))
        sending = Sending(store, topics, groups, locks, configuration, statistics, clock, unique_ids, self._random)
        timers = self._open_timers(store, sending, statistics) if settings.timer_wheel_enable else None
        compacted = self._open_compacted(store, topics) if settings.enable_compaction else None
        delayed = DelayedMessages(
            JsonFile(self._disk, folder / tables.DELAYS, tables.DelayTable),
            DelayProgress(self._disk, folder / delay_progress.NAME),
            store,
            sending,
            clock,
        )
        request_modes = RequestModes(JsonFile(self._disk, folder / tables.REQUEST_MODES, tables.RequestModeTable))
        copying = master_tables = None
        if settings.is_slave:
            pool = self._pool(own_signature(settings))
            copying = Copying(store, configuration, clock, pool, self._network)
            master_tables = MasterTables(copying, pool, topics, groups, offsets, delayed, request_modes)
        registration = Registration(
            topics, configuration, name_servers, partial(self._pool, own_signature(settings)),
            copying.follow if copying else None,
        )  # fmt: skip
        slaves = Slaves(store, configuration, self._network)
        durability = Durability(
            store,
            settings.sync_flush_timeout / 1000,
            settings.send_thread_pool_queue_capacity,
            slaves,
            settings.copies_awaited,
        )
        lease_log = LeaseLog(store, configuration, statistics, clock, host)
        open_leases = OpenLeases()
        if not settings.is_slave:
            offsets.log_end = lambda: store.log.end
            restore_positions(store, lease_log, offsets, settings.revive_queue_num)
        ordered = OrderedLeases(JsonFile(self._disk, folder / tables.ORDERS, tables.OrderTable), topics, groups, clock)
        popping = Popping(
            store,
            topics,
            offsets,
            lease_log,
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
            master_tables=master_tables,
            users=users,
            gate=gate,
            refusals=refusals,
            pulling=Pulling(store, topics, groups, clients, offsets, configuration, statistics, compacted, filters),
            delayed=delayed,
            timers=timers,
            compacted=compacted,
            half_messages=HalfMessages(store, topics, offsets, clients, sending, configuration, clock, host),
            registration=registration,
            totals=Totals(clock, statistics, topics, settings.broker_cluster_name),
            progress=Progress(store, topics, groups, offsets, clients, statistics, configuration),
            cleaning=Cleaning(store, configuration, [store, *([timers.wheel.log] if timers is not None else [])]),
            filter_servers=FilterServers(registration),
            cold_data=ColdDataLimits(),
            lease_log=lease_log,
            open_leases=open_leases,
            ordered_leases=ordered,
            pops=Serving(popping, ordered, topics, groups, durability, configuration, clock, start_task),
            settling=Settling(offsets, lease_log, open_leases, ordered, configuration, statistics, clock),
            reviving=Reviving(
                store, topics, groups, offsets, lease_log, open_leases, sending, configuration, statistics, clock
            ),
            request_modes=request_modes,
            topic_routes=TopicRoutes(topics, name_servers, settings.broker_name, self._pool()),
        )

    def _pool(
        self,
        sign: Callable[[Command], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> Pool:
        return Pool(network=self._network, randomness=self._random, sign=sign, on_close=on_close)

    def _offsets_file(self, folder: Path) -> JsonFile[tables.OffsetTable]:
        """Light queues have a file of their own, for all offsets; it begins with what the usual one knows."""
        usual = JsonFile(self._disk, folder / tables.OFFSETS, tables.OffsetTable)
        if not self._configuration.settings.enable_lmq:
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
        return Timers(wheel, file, store, sending, self._configuration, statistics, clock, self._random)

    def _open_compacted(self, store: Store, topics: Topics) -> CompactedTopics:
        path = store.config.compaction_path / tables.COMPACTED
        return CompactedTopics(JsonFile(self._disk, path, tables.CompactedTable), store, topics)


def _wants_notices(configuration: BrokerConfiguration, groups: Groups, group: str) -> bool:
    config = groups.get(group)
    return configuration.settings.notify_consumer_ids_changed_enable and (
        config is None or config.notify_consumer_ids_changed_enable
    )
