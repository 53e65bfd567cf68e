"""Opening a broker's parts: tables and store from its folder, and what works on them. Nothing runs yet when they are open."""

from __future__ import annotations

import logging
import os
import random
import secrets
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from orbitmq.access.needs import Action, Kind, Need
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
from orbitmq.broker.durability import Durability, until_durable
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
from orbitmq.broker.refusing import Refusing
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.acting import ActingMaster
from orbitmq.broker.replication.escape import Escape
from orbitmq.broker.replication.handing_back import HandingBack
from orbitmq.broker.replication.master import Slaves
from orbitmq.broker.replication.members import Members
from orbitmq.broker.replication.metadata import MasterTables
from orbitmq.broker.replication.slave import Copying
from orbitmq.broker.replication.slave_timers import SlaveTimers
from orbitmq.broker.replication.wire import CHALLENGE_BYTES, Handshake
from orbitmq.broker.request_modes import RequestModes
from orbitmq.broker.sending import Sending
from orbitmq.broker.service_times import ServiceTimes
from orbitmq.broker.state import State
from orbitmq.broker.statistics import Statistics
from orbitmq.broker.timer_counts import TimerCounts
from orbitmq.broker.timers import Timers
from orbitmq.broker.topic_routes import TopicRoutes
from orbitmq.broker.topics import Topics
from orbitmq.broker.totals import Totals
from orbitmq.clock import Clock
from orbitmq.message.hosts import pack_host
from orbitmq.message.ids import UniqueIds
from orbitmq.message.record import decode_entry
from orbitmq.protocol.codes import RequestCode
from orbitmq.storage import delay_progress, tables
from orbitmq.storage.delay_progress import DelayProgress
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.store import Store
from orbitmq.storage.timer_store import TimerStore
from orbitmq.storage.written_here import mark_written_here
from orbitmq.transport.address import Address
from orbitmq.transport.congestion import Congestion
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.pool import Pool
from orbitmq.transport.rates import Rates
from orbitmq.transport.request_times import RequestTimes
from orbitmq.transport.tls import ClientTls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from orbitmq.access.gate import Door
    from orbitmq.access.users import Users
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


class _Tables(NamedTuple):
    """What is known besides messages, each in a file of its own."""

    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    filters: ConsumerFilters
    request_modes: RequestModes


class _LeaseParts(TypedDict):
    """Those parts of `State` that hand out leases and take them back."""

    lease_log: LeaseLog
    open_leases: OpenLeases
    ordered_leases: OrderedLeases
    pops: Serving
    settling: Settling
    reviving: Reviving


class _ActingParts(TypedDict):
    members: Members | None
    acting: ActingMaster | None
    handing_back: HandingBack | None


class Opener:
    def __init__(
        self,
        configuration: BrokerConfiguration,
        clock: Clock,
        disk: Disk,
        network: Network | None,
        randomness: random.Random | None,
        threads: Threads | None = None,
    ) -> None:
        """Without `randomness`, what must not be guessed is the system's; with it, all of it is repeatable."""
        self._configuration = configuration
        self._clock = clock
        self._disk = disk
        self._network = network
        self._random = randomness or random.Random()
        self._unguessable = secrets.token_bytes if randomness is None else randomness.randbytes
        outgoing = configuration.tls.outgoing
        self._tls = ClientTls(outgoing).newest if outgoing.enabled else None
        self._threads = threads

    def open(self, address: Address, name_servers: NameServers, start_task: StartTask) -> State:
        """Everything, ready to be connected and started. `address` is what clients will be told, its port perhaps not yet."""
        configuration, clock = self._configuration, self._clock
        settings = configuration.settings
        host = pack_host(*address)
        users = open_users(settings, settings.storage_config().config_path / "auth", settings.access_file())
        refusals = Refusals()
        gate = self._open_gate(users, refusals)  # before the store: it may refuse its settings
        known = self._open_tables(refusals)
        store = self._open_store(known.topics, host)
        stats, locks, times, congestion = Statistics(clock), QueueLocks(clock), RequestTimes(), Congestion()
        clients = Clients(clock, partial(_wants_notices, configuration, known.groups))
        sending = self._open_sending(store, known, locks, stats, host)
        timers = self._open_timers(store, sending, stats) if settings.timer_wheel_enable else None
        compacted = self._open_compacted(store, known.topics) if settings.enable_compaction else None
        delayed = self._open_delayed(store, sending)
        copying, master_tables = self._open_copying(store, known, delayed, timers)
        pool_for_registration = partial(self._pool, own_signature(settings))
        follow = copying.follow if copying is not None else None
        registration = Registration(known.topics, configuration, name_servers, pool_for_registration, follow)
        slaves = Slaves(store, configuration, self._network, self._handshakes(gate))
        durability = self._open_durability(store, slaves)
        topics, groups, offsets = known.topics, known.groups, known.offsets
        lease_parts = self._open_leases(store, known, sending, durability, stats, host, start_task, compacted)
        half_messages = HalfMessages(store, topics, offsets, clients, sending, configuration, stats, clock, host)
        done = (offsets, delayed, timers, half_messages)
        acting_parts = self._open_acting(store, registration, copying, master_tables, done, lease_parts, name_servers)
        return State(
            **lease_parts,
            **acting_parts,
            configuration=configuration,
            clock=clock,
            randomness=self._random,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            filters=known.filters,
            clients=clients,
            locks=locks,
            statistics=stats,
            sending=sending,
            receipts=Receipts(settings.region_id, trace_on=settings.trace_on),
            durability=durability,
            slaves=slaves,
            copying=copying,
            master_tables=master_tables,
            users=users,
            gate=gate,
            refusals=refusals,
            pulling=Pulling(store, topics, groups, clients, offsets, configuration, stats, compacted, known.filters),
            delayed=delayed,
            timers=timers,
            compacted=compacted,
            half_messages=half_messages,
            registration=registration,
            totals=Totals(clock, stats, topics, settings.broker_cluster_name),
            progress=Progress(store, topics, groups, offsets, clients, stats, configuration),
            cleaning=Cleaning(store, configuration, [store, *([timers.wheel.log] if timers is not None else [])]),
            filter_servers=FilterServers(registration),
            cold_data=ColdDataLimits(),
            request_modes=known.request_modes,
            topic_routes=TopicRoutes(topics, name_servers, settings.broker_name, self._pool(own_signature(settings))),
            times=times,
            congestion=congestion,
            refusing=Refusing(congestion, configuration, times, refusals),
            service_times=ServiceTimes(times, durability),
        )

    def _pool(
        self,
        sign: Callable[[Command], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> Pool:
        return Pool(network=self._network, randomness=self._random, tls=self._tls, sign=sign, on_close=on_close)

    # ---- what is kept in files

    def _open_tables(self, refusals: Refusals) -> _Tables:
        configuration, clock, disk = self._configuration, self._clock, self._disk
        folder = configuration.settings.storage_config().config_path
        topics = Topics(JsonFile(disk, folder / tables.TOPICS, tables.TopicTable), configuration, clock, refusals)
        filters = JsonFile(disk, folder / tables.FILTERS, tables.FilterTable)
        return _Tables(
            topics,
            Groups(JsonFile(disk, folder / tables.GROUPS, tables.GroupTable), configuration, clock, refusals),
            ConsumerOffsets(self._offsets_file(folder), configuration, clock),
            ConsumerFilters(filters, configuration, clock, lambda name: topics.get(name) is not None),
            RequestModes(JsonFile(disk, folder / tables.REQUEST_MODES, tables.RequestModeTable)),
        )

    def _open_store(self, topics: Topics, host: bytes) -> Store:
        config = self._configuration.settings.storage_config()
        store = Store(
            config, host, clock=self._clock, disk=self._disk, threads=self._threads, is_batch_topic=topics.is_batch
        )
        if not self._configuration.settings.is_slave:
            mark_written_here(self._disk, config.directory)
        store.start()
        logger.info(
            "opened the store %s: %d topics, log from %d to %d, last stop %s",
            config.directory, len(topics.all()), store.log.start, store.log.end, store.last_exit.name.lower(),
        )  # fmt: skip
        return store

    def _handshakes(self, gate: Door | None) -> Callable[[str], Handshake] | None:
        """Slaves copy everything, so they need what changes the cluster needs."""
        settings = self._configuration.settings
        if gate is None or not settings.ha_authentication:
            return None
        need = Need(Kind.CLUSTER, settings.broker_cluster_name, (Action.UPDATE,))

        def begin(source: str) -> Handshake:
            key_of = partial(gate.key_for_proof, RequestCode.EXCHANGE_BROKER_HA_INFO)
            return Handshake(lambda name: key_of(name, need, source), self._unguessable(CHALLENGE_BYTES))

        return begin

    def _offsets_file(self, folder: Path) -> JsonFile[tables.OffsetTable]:
        """Light queues have a file of their own, for all offsets; it begins with what the usual one knows."""
        usual = JsonFile(self._disk, folder / tables.OFFSETS, tables.OffsetTable)
        if not self._configuration.settings.enable_lmq:
            return usual
        light = JsonFile(self._disk, folder / tables.LIGHT_OFFSETS, tables.OffsetTable)
        if self._disk.stat(light.path) is None:
            light.save(usual.load())
        return light

    # ---- what works on it

    def _open_gate(self, users: Users, refusals: Refusals) -> Door | None:
        configuration, settings = self._configuration, self._configuration.settings
        rates = Rates("user", lambda: configuration.settings, self._clock, refusals)
        configuration.when_changed.append(rates.refresh)
        if settings.acl_enable:
            return PlainGate(settings.access_file(), settings.broker_cluster_name, self._clock, rates)
        return open_gate(settings, users, settings.broker_cluster_name, rates)

    def _open_sending(self, store: Store, known: _Tables, locks: QueueLocks, stats: Statistics, host: bytes) -> Sending:
        clock, randomness = self._clock, self._random
        unique_ids = UniqueIds(clock, host[:-4], os.getpid(), randomness.getrandbits(32))
        topics, groups, configuration = known.topics, known.groups, self._configuration
        return Sending(store, topics, groups, locks, configuration, stats, clock, unique_ids, randomness)

    def _open_delayed(self, store: Store, sending: Sending) -> DelayedMessages:
        folder, disk = store.config.config_path, self._disk
        file = JsonFile(disk, folder / tables.DELAYS, tables.DelayTable)
        return DelayedMessages(file, DelayProgress(disk, folder / delay_progress.NAME), store, sending, self._clock)

    def _open_copying(
        self, store: Store, known: _Tables, delayed: DelayedMessages, timers: Timers | None
    ) -> tuple[Copying | None, MasterTables | None]:
        """What a slave has and a master has not."""
        configuration = self._configuration
        if not configuration.settings.is_slave:
            return None, None
        pool = self._pool(own_signature(configuration.settings))
        copying = Copying(store, configuration, self._clock, pool, self._network)
        topics, groups, offsets, _, request_modes = known
        followed = SlaveTimers(timers, store, self._clock) if timers is not None else None
        return copying, MasterTables(copying, pool, topics, groups, offsets, delayed, request_modes, followed, store)

    def _open_acting(
        self,
        store: Store,
        registration: Registration,
        copying: Copying | None,
        master_tables: MasterTables | None,
        done: tuple[ConsumerOffsets, DelayedMessages, Timers | None, HalfMessages],
        leases: _LeaseParts,
        name_servers: NameServers,
    ) -> _ActingParts:
        """For a slave that may act in its master's place, and a master that takes back what one did (`done`)."""
        configuration = self._configuration
        if not configuration.settings.enable_slave_acting_master:
            return {"members": None, "acting": None, "handing_back": None}
        new_pool = partial(self._pool, own_signature(configuration.settings))
        members = Members(configuration, name_servers, registration, new_pool())
        if copying is None or master_tables is None:
            return {"members": members, "acting": None, "handing_back": HandingBack(members, new_pool(), store, *done)}
        escape = Escape(configuration, name_servers, new_pool())
        offsets, delayed, _, half_messages = done
        acting = ActingMaster(
            configuration, members, escape, copying, master_tables, offsets, delayed, master_tables.timers, half_messages,
            leases["lease_log"], leases["reviving"], self._clock,
        )  # fmt: skip
        return {"members": members, "acting": acting, "handing_back": None}

    def _open_durability(self, store: Store, slaves: Slaves) -> Durability:
        settings = self._configuration.settings
        timeout_seconds, most_waiting = settings.sync_flush_timeout / 1000, settings.send_thread_pool_queue_capacity
        return Durability(store, timeout_seconds, most_waiting, slaves, settings.copies_awaited)

    def _open_leases(
        self,
        store: Store,
        known: _Tables,
        sending: Sending,
        durability: Durability,
        stats: Statistics,
        host: bytes,
        start_task: StartTask,
        compacted: CompactedTopics | None,
    ) -> _LeaseParts:
        configuration, clock, settings = self._configuration, self._clock, self._configuration.settings
        topics, groups, offsets = known.topics, known.groups, known.offsets
        lease_log = LeaseLog(store, configuration, stats, clock, host)
        lease_log.look_into(topics.require(lease_log.topic).read_queue_nums)
        open_leases = OpenLeases()
        offsets.until_log_is_safe = lambda: until_durable(store, store.log.end)
        if not settings.is_slave:
            offsets.log_end = lambda: store.log.end
            restore_positions(store, lease_log, offsets, lease_log.queues)
        path = store.config.config_path / tables.ORDERS
        ordered = OrderedLeases(JsonFile(self._disk, path, tables.OrderTable), topics, groups, clock)
        popping = Popping(
            store, topics, groups, offsets, lease_log, open_leases, ordered, configuration, stats, clock, self._random,
            compacted,
        )  # fmt: skip
        return _LeaseParts(
            lease_log=lease_log,
            open_leases=open_leases,
            ordered_leases=ordered,
            pops=Serving(popping, ordered, topics, groups, durability, configuration, clock, start_task),
            settling=Settling(offsets, lease_log, open_leases, ordered, configuration, stats, clock),
            reviving=Reviving(
                store, topics, groups, offsets, lease_log, open_leases, sending, configuration, stats, clock, compacted
            ),
        )

    def _open_timers(self, store: Store, sending: Sending, statistics: Statistics) -> Timers:
        def is_timer_record(commit_log_offset: int, size: int) -> bool:
            record = store.record_at(commit_log_offset)
            if record is None or len(record) != size:
                return False
            return decode_entry(record, 0, commit_log_offset).topic == names.TIMER_TOPIC

        config, clock = store.config, self._clock
        wheel = TimerStore(self._disk, config, clock.now_ms(), store.last_exit, is_timer_record)
        file = JsonFile(self._disk, config.config_path / tables.TIMER_COUNTS, tables.TimerCountTable)
        counts = TimerCounts(file, clock)
        return Timers(wheel, counts, store, sending, self._configuration, statistics, clock, self._random)

    def _open_compacted(self, store: Store, topics: Topics) -> CompactedTopics:
        path = store.config.compaction_path / tables.COMPACTED
        return CompactedTopics(JsonFile(self._disk, path, tables.CompactedTable), store, topics)


def _wants_notices(configuration: BrokerConfiguration, groups: Groups, group: str) -> bool:
    config = groups.get(group)
    return configuration.settings.notify_consumer_ids_changed_enable and (
        config is None or config.notify_consumer_ids_changed_enable
    )
