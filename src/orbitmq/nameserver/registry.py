"""The route tables: what brokers told us, and until when we believe it. No I/O; one thread.

    topics      topic -> broker name -> QueueData        brokers   broker name -> BrokerData (address per broker id)
    clusters    cluster -> broker names                  live      (cluster, address) -> when last heard, version, channel
    filters     (cluster, address) -> filter servers     mappings  topic -> broker name -> static-topic mapping

Java: RouteInfoManager
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from orbitmq.protocol.bodies.route import BrokerData, BrokerMembers, ClusterInfo, QueueData, TopicRoute
from orbitmq.protocol.bodies.topics import (
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUB,
    DataVersion,
    TopicConfig,
    TopicQueueMapping,
    TopicTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from orbitmq.clock import Clock
    from orbitmq.protocol.bodies.registration import ListedTopic, TopicListing

logger = logging.getLogger(__name__)

V = TypeVar("V")

MASTER_ID: Final = 0
_SYNC_MEMBERS_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"  # brokers use these to see each other as they are


class BrokerKey(NamedTuple):
    cluster: str
    address: str


class Departure(NamedTuple):
    """A broker to be forgotten."""

    cluster: str
    address: str
    broker_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnnouncement:
    """What a broker says of itself when it registers."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    timeout_ms: int | None = None
    acting_master: bool | None = None  # None: a broker from before acting masters
    zone: str | None = None
    topics: TopicTable | TopicListing
    filter_servers: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """For a slave: where its master is, if one is alive."""

    master_address: str | None = None
    master_ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class MinimumIdChange:
    """The smallest broker id of a name changed: these replicas should know."""

    broker_name: str
    minimum_id: int
    minimum_address: str
    offline_address: str | None
    ha_address: str | None
    recipients: tuple[str, ...]


class _Live:
    __slots__ = ("broker_id", "broker_name", "channel", "data_version", "ha_address", "last_heard_ms", "timeout_ms")

    def __init__(self, broker: BrokerAnnouncement, channel: Hashable, last_heard_ms: int, timeout_ms: int) -> None:
        self.broker_name = broker.name
        self.broker_id = broker.broker_id
        self.data_version = broker.topics.data_version
        self.ha_address = broker.ha_address
        self.channel = channel
        self.last_heard_ms = last_heard_ms
        self.timeout_ms = timeout_ms


class RouteRegistry:
    def __init__(
        self,
        clock: Clock,
        *,
        silent_ms: Callable[[], int] = lambda: 120_000,
        delete_unlisted_topics: Callable[[], bool] = lambda: False,
        announce: Callable[[MinimumIdChange], None] = lambda change: None,
    ) -> None:
        """`silent_ms`: how long a broker may be silent that does not say itself. `announce` hears of new minimum ids."""
        self.generation = 0  # grows with every change that a route answer could show
        self._clock = clock
        self._silent_ms = silent_ms
        self._delete_unlisted_topics = delete_unlisted_topics
        self._announce = announce
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[BrokerKey, _Live] = {}
        self._filters: dict[BrokerKey, list[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMapping]] = {}
        self._keys_by_channel: dict[Hashable, set[BrokerKey]] = {}

    # ---- brokers come

    def register(self, broker: BrokerAnnouncement, channel: Hashable) -> Registered | None:
        """Believe a broker. None: refused, because it starts with a single topic and is not known yet.

        That refusal protects the one-topic registrations which brokers send when a topic changes: taken as a first
        registration, one would hide all other topics of the broker.
        """
        known = self._brokers.get(broker.name)
        addresses = known.broker_addrs if known is not None else {}
        if self._is_outdated(broker, addresses.get(broker.broker_id)):
            self._drop_live(BrokerKey(broker.cluster, broker.address))
            return Registered()
        if broker.broker_id not in addresses and len(broker.topics.topic_config_table) == 1:
            logger.warning("refused %s of %s: its first registration has one topic only", broker.address, broker.name)
            return None
        self._forget_former_self(broker)
        data, is_new = self._update_broker(broker)
        if self._may_name_topics(broker, data):
            self._take_topics(broker, data, is_new)
        self._keep_alive(broker, channel)
        return self._master_of(broker, data)

    def heard_from(self, cluster: str, address: str) -> None:
        live = self._live.get(BrokerKey(cluster, address))
        if live is not None:
            live.last_heard_ms = self._clock.now_ms()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get(BrokerKey(cluster, address))
        return live.data_version if live is not None else None

    def _is_outdated(self, broker: BrokerAnnouncement, current_address: str | None) -> bool:
        """Two processes claim one broker id: the one with the higher state version keeps it."""
        if current_address is None or current_address == broker.address:
            return False
        rival = self._live.get(BrokerKey(broker.cluster, current_address))
        if rival is None or rival.data_version.state_version <= broker.topics.data_version.state_version:
            return False
        logger.warning(
            "ignored %s as %s id %d: %s has a newer state",
            broker.address,
            broker.name,
            broker.broker_id,
            current_address,
        )
        return True

    def _forget_former_self(self, broker: BrokerAnnouncement) -> None:
        """A process that comes back under another name takes its address with it; nobody else will ever take it away. One that
        comes back in another cluster would lose the address when its former entry falls silent.
        """
        key = BrokerKey(broker.cluster, broker.address)
        former = self._live.get(key)
        if former is not None and former.broker_name != broker.name:
            self.unregister([self.departure(key)])
        if former is None:
            moved = [k for k, live in self._live.items() if (k.address, live.broker_name) == (key.address, broker.name)]
            self.unregister([self.departure(one) for one in moved])

    def _update_broker(self, broker: BrokerAnnouncement) -> tuple[BrokerData, bool]:
        """The broker's entry, and whether this id is new in it."""
        names = self._clusters.setdefault(broker.cluster, set())
        if broker.name not in names:
            names.add(broker.name)
            self.generation += 1
        data = self._brokers.get(broker.name)
        if data is None:
            data = self._brokers[broker.name] = BrokerData(cluster=broker.cluster, broker_name=broker.name)
            self.generation += 1
        acting_master = bool(broker.acting_master)
        if (data.enable_acting_master, data.zone_name) != (acting_master, broker.zone):
            data.enable_acting_master, data.zone_name = acting_master, broker.zone
            self.generation += 1

        addresses = data.broker_addrs
        lowest_before = min(addresses, default=0)
        for other_id in [i for i, address in addresses.items() if address == broker.address and i != broker.broker_id]:
            del addresses[other_id]  # a slave that became master, or the reverse
            self.generation += 1
        previous = addresses.get(broker.broker_id)
        if previous != broker.address:
            addresses[broker.broker_id] = broker.address
            self.generation += 1
            logger.info("broker %s id %d is at %s", broker.name, broker.broker_id, broker.address)
        if broker.broker_id < lowest_before:
            recipients = tuple(
                address for i, address in addresses.items() if i != broker.broker_id or len(addresses) == 1
            )
            self._announce(
                MinimumIdChange(broker.name, broker.broker_id, broker.address, None, broker.ha_address, recipients)
            )
        return data, not previous

    def _may_name_topics(self, broker: BrokerAnnouncement, data: BrokerData) -> bool:
        return broker.broker_id == MASTER_ID or self._is_prime_slave(broker, data)

    @staticmethod
    def _is_prime_slave(broker: BrokerAnnouncement, data: BrokerData) -> bool:
        """The first of a name's slaves speaks for its topics when there is no master."""
        return (
            broker.acting_master is not None
            and broker.broker_id != MASTER_ID
            and broker.broker_id == min(data.broker_addrs)
        )

    def _take_topics(self, broker: BrokerAnnouncement, data: BrokerData, is_new: bool) -> None:
        table = broker.topics
        version_changed = self.data_version(broker.cluster, broker.address) != table.data_version
        if self._delete_unlisted_topics() and _lists_all_topics(broker):
            for topic in [t for t, q in self._topics.items() if broker.name in q and t not in table.topic_config_table]:
                self._remove_queues(topic, (broker.name,))
        read_only = data.enable_acting_master and self._is_prime_slave(broker, data)
        topics, name, take_all = self._topics, broker.name, is_new or version_changed
        # Ten thousand topics have a handful of shapes, and queue data is never changed in place: one for each is enough.
        shapes: dict[tuple[int, int, int, int], QueueData] = {}
        changes = 0
        for config in table.topic_config_table.values():
            topic = config.topic_name
            queues = topics.get(topic)
            if queues is not None and name in queues and not take_all:
                continue
            shape = (config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
            wanted = shapes.get(shape)
            if wanted is None:
                wanted = shapes[shape] = _queue_data(name, config, read_only=read_only)
            if queues is None:
                topics[topic] = {name: wanted}
            elif queues.get(name) != wanted:
                queues[name] = wanted
            else:
                continue
            changes += 1
        self.generation += changes
        if is_new or version_changed:
            for topic, mapping in table.topic_queue_mapping_info_map.items():
                self._mappings.setdefault(topic, {})[mapping.bname or name] = mapping
                self.generation += 1

    def _put_queues(self, topic: str, queues: QueueData) -> None:
        by_broker = self._topics.setdefault(topic, {})
        if by_broker.get(queues.broker_name) != queues:
            by_broker[queues.broker_name] = queues
            self.generation += 1

    def _keep_alive(self, broker: BrokerAnnouncement, channel: Hashable) -> None:
        key = BrokerKey(broker.cluster, broker.address)
        previous = self._live.get(key)
        if previous is None:
            logger.info("broker %s id %d of %s registered from %s", broker.name, broker.broker_id, *key)
        elif previous.channel is not channel:
            self._forget_channel(previous.channel, key)
        timeout_ms = broker.timeout_ms if broker.timeout_ms is not None else self._silent_ms()
        self._live[key] = _Live(broker, channel, self._clock.now_ms(), timeout_ms)
        self._keys_by_channel.setdefault(channel, set()).add(key)
        if broker.filter_servers is not None and self._filters.get(key, []) != broker.filter_servers:
            self.generation += 1
            if broker.filter_servers:
                self._filters[key] = broker.filter_servers
            else:
                del self._filters[key]

    def _master_of(self, broker: BrokerAnnouncement, data: BrokerData) -> Registered:
        master_address = data.broker_addrs.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master_address is None:
            return Registered()
        master = self._live.get(BrokerKey(broker.cluster, master_address))
        return Registered(master_address, master.ha_address) if master is not None else Registered()

    # ---- brokers go

    def silent_brokers(self) -> list[tuple[BrokerKey, Hashable]]:
        """Brokers not heard from for longer than they may be, and the channels they last used."""
        now_ms = self._clock.now_ms()
        return [
            (key, live.channel) for key, live in self._live.items() if live.last_heard_ms + live.timeout_ms < now_ms
        ]

    def departure(self, key: BrokerKey) -> Departure:
        """The leaving of the broker that lives at this address."""
        live = self._live[key]
        return Departure(key.cluster, key.address, live.broker_name, live.broker_id)

    def departures_with(self, channel: Hashable) -> list[Departure]:
        """The brokers that registered over this channel, now that it is gone."""
        return [self.departure(key) for key in self._keys_by_channel.get(channel, ())]

    def unregister(self, departures: Iterable[Departure]) -> None:
        """Forget brokers, many in one pass over the topics."""
        removed: set[str] = set()
        without_master: set[str] = set()
        for departure in departures:
            key = BrokerKey(departure.cluster, departure.address)
            self._drop_live(key)
            if self._filters.pop(key, None) is not None:
                self.generation += 1
            data = self._brokers.get(departure.broker_name)
            if data is None:
                continue
            self._remove_address(data, departure.address)
            if not data.broker_addrs:
                self._remove_broker(departure.broker_name)
                removed.add(departure.broker_name)
            elif data.enable_acting_master and MASTER_ID not in data.broker_addrs:
                without_master.add(departure.broker_name)
        if removed:
            self.generation += _remove_everywhere(self._topics, removed) + _remove_everywhere(self._mappings, removed)
        for name in without_master - removed:
            self._set_permissions(name, lambda perm: perm & ~PERM_WRITE)

    def _remove_address(self, data: BrokerData, address: str) -> None:
        addresses = data.broker_addrs
        gone = [broker_id for broker_id, known in addresses.items() if known == address]
        if not gone:
            return
        lowest_left = min(gone) == min(addresses)
        for broker_id in gone:
            del addresses[broker_id]
        self.generation += 1
        logger.info("broker %s lost %s", data.broker_name, address)
        if lowest_left and addresses and data.enable_acting_master:
            lowest = min(addresses)
            self._announce(
                MinimumIdChange(data.broker_name, lowest, addresses[lowest], address, None, tuple(addresses.values()))
            )

    def _remove_broker(self, broker_name: str) -> None:
        del self._brokers[broker_name]
        # From every cluster: its replicas may have named different ones.
        for cluster, names in list(self._clusters.items()):
            names.discard(broker_name)
            if not names:
                del self._clusters[cluster]

    def _drop_live(self, key: BrokerKey) -> None:
        live = self._live.pop(key, None)
        if live is not None:
            self._forget_channel(live.channel, key)

    def _forget_channel(self, channel: Hashable, key: BrokerKey) -> None:
        keys = self._keys_by_channel.get(channel)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys_by_channel[channel]

    def _remove_queues(self, topic: str, broker_names: Iterable[str]) -> None:
        for table in (self._topics, self._mappings):
            by_broker = table.get(topic)
            if by_broker is None:
                continue
            for name in broker_names:
                if by_broker.pop(name, None) is not None:
                    self.generation += 1
            if not by_broker:
                del table[topic]

    # ---- operators' wishes

    def register_topic(self, topic: str, queue_datas: list[QueueData]) -> None:
        unknown = [queues.broker_name for queues in queue_datas if queues.broker_name not in self._brokers]
        if unknown:
            logger.warning("ignored topic %s: nobody registered as %s", topic, ", ".join(unknown))
            return
        for queues in queue_datas:
            self._put_queues(topic, queues)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        if cluster:
            self._remove_queues(topic, self._clusters.get(cluster, ()))
        else:
            self._remove_queues(topic, [*self._topics.get(topic, ()), *self._mappings.get(topic, ())])

    def wipe_write_permission(self, broker_name: str) -> int:
        """How many topics it touched."""
        return self._set_permissions(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Exactly read and write, as Java sets it: an inherit bit is lost until the broker's next change."""
        return self._set_permissions(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def _set_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        touched = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                queues[broker_name] = msgspec.structs.replace(data, perm=change(data.perm))
                touched += 1
        self.generation += 1
        return touched

    # ---- questions

    def route(self, topic: str, *, acting_masters: bool = False) -> TopicRoute | None:
        """A copy. None when the topic has no queues, or none of their brokers is known."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)  # so that every name server gives the same answer, in Java's usual order
        brokers = [_copy(self._brokers[name]) for name in names if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: servers
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (servers := self._filters.get(BrokerKey(broker.cluster, address)))
        }
        if acting_masters and not topic.startswith(_SYNC_MEMBERS_PREFIX):
            for broker in brokers:
                _promote_acting_master(broker, queues[broker.broker_name])
        return TopicRoute(
            broker_datas=brokers,
            queue_datas=[queues[name] for name in names],
            filter_server_table=filters,
            topic_queue_mapping_by_broker=self._mappings.get(topic) or None,
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table=self._brokers,
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def members(self, cluster: str, broker_name: str) -> BrokerMembers:
        data = self._brokers.get(broker_name)
        addresses = dict(data.broker_addrs) if data is not None else {}
        return BrokerMembers(cluster=cluster, broker_name=broker_name, broker_addrs=addresses)

    def topics(self) -> list[str]:
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Every cluster and broker name is a topic of its own; and one broker that can tell more."""
        names = dict.fromkeys(self._clusters)
        for members in self._clusters.values():
            names.update(dict.fromkeys(sorted(members)))
        addresses = (address for data in self._brokers.values() for address in data.broker_addrs.values())
        return list(names), next(addresses, None)

    def topics_with_flags(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics by system flag (unit, unit-sub) of their first queues."""
        return [
            topic
            for topic, queues in self._topics.items()
            if (flags := next(iter(queues.values())).topic_sys_flag) & wanted == wanted and not flags & unwanted
        ]

    @property
    def broker_count(self) -> int:
        return len(self._live)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def summary(self) -> str:
        brokers = ", ".join(
            f"{data.broker_name} of {data.cluster} at {' '.join(data.broker_addrs.values())}"
            for data in self._brokers.values()
        )
        return f"{len(self._clusters)} clusters, {len(self._topics)} topics, {len(self._live)} brokers: {brokers or 'none'}"


UNIT_TOPICS: Final = {"wanted": SYS_FLAG_UNIT}
UNIT_SUB_TOPICS: Final = {"wanted": SYS_FLAG_UNIT_SUB}
UNIT_SUB_TOPICS_OUTSIDE_UNITS: Final = {"wanted": SYS_FLAG_UNIT_SUB, "unwanted": SYS_FLAG_UNIT}


def _lists_all_topics(broker: BrokerAnnouncement) -> bool:
    """Brokers also tell of a changed topic alone. With all topics comes the one named like the broker, which nobody can change.

    Static topics are listed elsewhere.
    """
    return broker.name in broker.topics.topic_config_table and not broker.topics.topic_queue_mapping_info_map


def _queue_data(broker_name: str, config: TopicConfig | ListedTopic, *, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm & ~PERM_WRITE if read_only else config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _remove_everywhere(table: dict[str, dict[str, V]], broker_names: set[str]) -> int:
    """Take these brokers out of all topics in one pass; how many entries that were."""
    gone = 0
    for topic, by_broker in list(table.items()):
        for name in broker_names:
            if by_broker.pop(name, None) is not None:
                gone += 1
        if not by_broker:
            del table[topic]
    return gone


def _copy(data: BrokerData) -> BrokerData:
    return BrokerData(
        cluster=data.cluster,
        broker_name=data.broker_name,
        broker_addrs=dict(data.broker_addrs),
        enable_acting_master=data.enable_acting_master,
        zone_name=data.zone_name,
    )


def _promote_acting_master(broker: BrokerData, queues: QueueData) -> None:
    """Show the first slave as the master, so that clients find someone to lock queues and ask for offsets."""
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master or queues.perm & PERM_WRITE:
        return
    addresses[MASTER_ID] = addresses.pop(min(addresses))
