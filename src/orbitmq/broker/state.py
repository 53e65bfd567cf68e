"""All parts of a running broker, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from orbitmq.access.gate import Door
    from orbitmq.access.users import Users
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
    from orbitmq.broker.leases.reviving import Reviving
    from orbitmq.broker.leases.serving import Serving
    from orbitmq.broker.leases.settling import Settling
    from orbitmq.broker.progress import Progress
    from orbitmq.broker.pulling import Pulling
    from orbitmq.broker.queue_locks import QueueLocks
    from orbitmq.broker.receipts import Receipts
    from orbitmq.broker.refusing import Refusing
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.replication.acting import ActingMaster
    from orbitmq.broker.replication.handing_back import HandingBack
    from orbitmq.broker.replication.master import Slaves
    from orbitmq.broker.replication.members import Members
    from orbitmq.broker.replication.metadata import MasterTables
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.request_modes import RequestModes
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.service_times import ServiceTimes
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.topic_routes import TopicRoutes
    from orbitmq.broker.topics import Topics
    from orbitmq.broker.totals import Totals
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.congestion import Congestion
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.request_times import RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The parts of a broker, for `routes.py` to hand out one by one. Handlers never see it whole."""

    configuration: BrokerConfiguration
    clock: Clock
    randomness: random.Random
    store: Store
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    filters: ConsumerFilters
    clients: Clients
    locks: QueueLocks
    statistics: Statistics
    sending: Sending
    receipts: Receipts
    durability: Durability
    slaves: Slaves
    copying: Copying | None  # of a slave
    master_tables: MasterTables | None  # of a slave
    members: Members | None  # None: enableSlaveActingMaster=false
    acting: ActingMaster | None  # of a slave, likewise
    handing_back: HandingBack | None  # of a master, likewise
    users: Users
    gate: Door | None  # None: everyone may do everything
    refusals: Refusals
    pulling: Pulling
    delayed: DelayedMessages
    timers: Timers | None  # None: timerWheelEnable=false
    compacted: CompactedTopics | None  # None: enableCompaction=false
    half_messages: HalfMessages
    registration: Registration
    totals: Totals
    progress: Progress
    cleaning: Cleaning
    filter_servers: FilterServers
    cold_data: ColdDataLimits
    lease_log: LeaseLog
    open_leases: OpenLeases
    ordered_leases: OrderedLeases
    pops: Serving
    settling: Settling
    reviving: Reviving
    request_modes: RequestModes
    topic_routes: TopicRoutes
    times: RequestTimes
    congestion: Congestion
    refusing: Refusing
    service_times: ServiceTimes
