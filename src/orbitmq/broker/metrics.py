"""What Prometheus scrapes: Apache's names and labels, put together only when somebody asks.

`message_type` is what the topic is for, by its attribute.

Java: BrokerMetricsManager, DefaultStoreMetricsManager
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names, statistics
from orbitmq.broker.histograms import ON_DISK, MessageSizes, Spread
from orbitmq.protocol import versions
from orbitmq.protocol.codes import RequestCode, ResponseCode, name_of
from orbitmq.transport.request_times import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from orbitmq.broker.clients import Clients
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.broker.leases.open_leases import OpenLeases
    from orbitmq.broker.leases.reviving import Reviving
    from orbitmq.broker.progress import Progress
    from orbitmq.broker.replication.master import Slaves
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.service_times import ServiceTimes
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.request_times import Kind, RequestTimes


_CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_LAGS: Final = (
    ("rocketmq_consumer_lag_messages", "Messages a group has not consumed."),
    ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest of them."),
    ("rocketmq_consumer_inflight_messages", "Messages fetched and not consumed."),
    ("rocketmq_consumer_queueing_latency_milliseconds", "Age of the oldest message not fetched."),
    ("rocketmq_consumer_ready_messages", "Messages not fetched."),
)

_RPC_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_Sample = tuple[dict[str, str], float]


class Metrics:
    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        progress: Progress,
        stats: Statistics,
        configuration: BrokerConfiguration,
        clock: Clock,
        timers: Timers | None,
        reviving: Reviving,
        open_leases: OpenLeases,
        refusals: Refusals,
        half_messages: HalfMessages,
        times: RequestTimes,
        service_times: ServiceTimes,
        slaves: Slaves,
        copying: Copying | None,
    ) -> None:
        self._slaves = slaves
        self._copying = copying
        self._refusals = refusals
        self._half_messages = half_messages
        self._times = times
        self._service_times = service_times
        self._timers = timers
        self._reviving = reviving
        self._open_leases = open_leases
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._progress = progress
        self._stats = stats
        self._configuration = configuration
        self._clock = clock

    async def text(self) -> str:
        """Gives way to other work between groups: there may be thousands."""
        lines = [*self._about_broker(), *self._about_messages(), *self._about_clients(), *self._about_store()]
        lines += self._about_copies()
        lines += [*self._about_requests(), *self._about_transactions(), *self._about_timers(), *self._about_leases()]
        for histogram in self._stats.histograms():
            lines += self._histogram(*histogram.kind[:3], histogram.spreads())
        lines += await self._about_lag()
        return "\n".join(lines) + "\n"

    # ---- families

    def _about_broker(self) -> Iterator[str]:
        permission = self._configuration.settings.broker_permission
        yield from self._family("rocketmq_broker_permission", "gauge", "4 read, 2 write.", [({}, permission)])
        yield from self._family("rocketmq_topic_number", "gauge", "Topics.", [({}, len(self._topics.all()))])
        yield from self._family("rocketmq_consumer_group_number", "gauge", "Groups.", [({}, len(self._groups.all()))])
        refused: list[_Sample] = [({"limit": key}, count) for key, count in self._refusals.by_key.items()]
        yield from self._family("orbitmq_refused_total", "counter", "Refused by a limit.", refused)

    def _about_copies(self) -> Iterator[str]:
        """Of a master, how far each slave is; of a slave, whether it copies."""
        end, states = self._store.log.end, self._slaves.states()
        families: tuple[tuple[str, str, list[_Sample]], ...]
        if self._copying is None:
            behind: list[_Sample] = [({"slave": state.address}, max(0, end - state.acked)) for state in states]
            speeds: list[_Sample] = [({"slave": state.address}, state.bytes_per_second) for state in states]
            families = (
                ("orbitmq_slave_lag_bytes", "What a slave does not have of the log.", behind),
                ("orbitmq_slave_sent_bytes_per_second", "Sent to a slave in the last second.", speeds),
                ("orbitmq_slaves_in_sync", "Slaves that count as a copy.", [({}, len(self._slaves.in_sync()))]),
            )
        else:
            copying = self._copying
            silent_ms = self._clock.now_ms() - copying.heard_at_ms if copying.is_connected else 0
            families = (
                ("orbitmq_master_connected", "1 while the master's log is copied.", [({}, int(copying.is_connected))]),
                ("orbitmq_master_silent_milliseconds", "Since the master sent something.", [({}, max(0, silent_ms))]),
                (
                    "orbitmq_master_received_bytes_per_second",
                    "Copied in the last second.",
                    [({}, copying.bytes_per_second)],
                ),
                ("orbitmq_master_lag_bytes", "What the master had more, as it last said.", [({}, copying.lag_bytes)]),
            )
        for name, help_text, samples in families:
            yield from self._family(name, "gauge", help_text, samples)

    def _about_messages(self) -> Iterator[str]:
        families = (
            ("rocketmq_messages_in_total", "Messages stored.", statistics.TOPIC_PUT_NUMS, self._of_topic),
            ("rocketmq_throughput_in_total", "Bytes stored.", statistics.TOPIC_PUT_SIZE, self._of_topic),
            ("rocketmq_messages_out_total", "Messages handed out.", statistics.GROUP_GET_NUMS, self._of_reader),
            ("rocketmq_throughput_out_total", "Bytes handed out.", statistics.GROUP_GET_SIZE, self._of_reader),
            ("rocketmq_send_to_dlq_messages_total", "Given up.", statistics.DLQ_PUT_NUMS, self._of_reader),
        )
        for name, help_text, counted, labels in families:
            samples = [(labels(key), counter.value) for key, counter in self._stats.counters(counted)]
            yield from self._family(name, "counter", help_text, samples)
        sizes = dict(self._stats.counters(statistics.TOPIC_PUT_SIZE))
        spreads = (
            (self._of_topic(topic), self._stats.message_sizes(topic).spread(counter.value, sizes[topic].value))
            for topic, counter in self._stats.counters(statistics.TOPIC_PUT_NUMS)
        )
        yield from self._histogram("rocketmq_message_size", "Sizes of records.", MessageSizes.BOUNDS, spreads)

    def _about_requests(self) -> Iterator[str]:
        """Java: RemotingMetricsManager"""
        waiting: list[_Sample] = [
            ({"processor": name}, count) for name, count in self._service_times.watermarks().items()
        ]
        yield from self._family("rocketmq_processor_watermark", "gauge", "Requests that wait.", waiting)
        spreads = (
            (_of_request(kind), Spread(spread(times.counts, _RPC_BOUNDS_MS), times.seconds * 1000))
            for kind, times in self._times.all()
            if any(times.counts)
        )
        name, help_text = "rocketmq_rpc_latency_milliseconds", "From a request's arrival to its answer."
        yield from self._histogram(name, help_text, _RPC_BOUNDS_MS, spreads)

    def _about_transactions(self) -> Iterator[str]:
        ended = [*self._stats.counters(statistics.COMMIT_NUMS), *self._stats.counters(statistics.ROLLBACK_NUMS)]
        by_topic = {**dict.fromkeys((topic for topic, _ in ended), 0), **self._half_messages.by_topic()}
        undecided: list[_Sample] = [({"topic": topic}, count) for topic, count in by_topic.items()]
        yield from self._family("rocketmq_half_messages", "gauge", "Undecided transactions.", undecided)
        for name, help_text, counted in (
            ("rocketmq_commit_messages_total", "Transactions committed.", statistics.COMMIT_NUMS),
            ("rocketmq_rollback_messages_total", "Transactions rolled back.", statistics.ROLLBACK_NUMS),
        ):
            samples: list[_Sample] = [({"topic": key}, counter.value) for key, counter in self._stats.counters(counted)]
            yield from self._family(name, "counter", help_text, samples)

    def _about_clients(self) -> Iterator[str]:
        producers = Tally(
            (client.language, client.version)
            for clients in self._clients.producer_groups().values()
            for client in clients
        )
        samples: list[_Sample] = [(_software(*software), count) for software, count in producers.items()]
        yield from self._family("rocketmq_producer_connections", "gauge", "Producers.", samples)
        samples = []
        for group, members in self._clients.consumer_groups().items():
            consumers = Tally((client.language, client.version) for client in members.clients.values())
            of_group = {
                "consumer_group": group,
                "consume_mode": _CONSUME_MODES.get(members.consume_type, "push"),
                "is_system": _flag(names.is_system_group(group)),
            }
            samples += [({**of_group, **_software(*software)}, count) for software, count in consumers.items()]
        yield from self._family("rocketmq_consumer_connections", "gauge", "Consumers.", samples)

    def _about_store(self) -> Iterator[str]:
        log = self._store.log
        earliest_ms = self._store.earliest_stored_at_ms()
        kept_ms = self._clock.now_ms() - earliest_ms if earliest_ms is not None else 0
        figures = (
            ("rocketmq_storage_size_bytes", "Bytes of the commit log.", log.end - log.start),
            ("rocketmq_storage_flush_behind_bytes", "Not on the device yet.", log.end - self._store.flushed_offset),
            ("rocketmq_storage_dispatch_behind_bytes", "Not indexed yet.", log.end - self._store.dispatched_offset),
            ("rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message.", kept_ms),
        )
        for name, help_text, value in figures:
            yield from self._family(name, "gauge", help_text, [(ON_DISK, value)])

    def _about_timers(self) -> Iterator[str]:
        timers = self._timers
        if timers is None:
            return
        gauges = (
            ("rocketmq_timer_enqueue_lag", "Timer messages that are not on the wheel yet.", timers.queue_behind),
            (
                "rocketmq_timer_enqueue_latency_milliseconds",
                "How long the first of them waits.",
                timers.queue_behind_ms,
            ),
            ("rocketmq_timer_dequeue_lag", "Messages on the wheel.", timers.counts.total()),
            ("rocketmq_timer_dequeue_latency_milliseconds", "How late the wheel is.", timers.read_behind_ms),
        )
        for name, help_text, value in gauges:
            yield from self._family(name, "gauge", help_text, [(ON_DISK, value)])
        timing: list[_Sample] = [
            ({**ON_DISK, "topic": topic}, count) for topic, count in timers.counts.by_topic().items()
        ]
        yield from self._family("rocketmq_timing_messages", "gauge", "Messages on the wheel.", timing)
        counted = (
            ("rocketmq_timer_enqueue_total", "Timer messages taken.", statistics.TIMER_ENQUEUE_NUMS),
            ("rocketmq_timer_dequeue_total", "Timer messages delivered.", statistics.TIMER_DEQUEUE_NUMS),
        )
        for name, help_text, counter_name in counted:
            samples = [
                ({**ON_DISK, "topic": key}, counter.value) for key, counter in self._stats.counters(counter_name)
            ]
            yield from self._family(name, "counter", help_text, samples)
        due: list[_Sample] = [({**ON_DISK, "timer_bound_s": str(end)}, count) for end, count in timers.spread()]
        yield from self._family("rocketmq_timer_message_snapshot", "gauge", "Messages due until then.", due)

    def _about_leases(self) -> Iterator[str]:
        """Java: PopMetricsManager"""
        counters = (
            ("rocketmq_pop_revive_in_message_total", "Checkpoints and acks written.", statistics.REVIVE_IN_NUMS, True),
            ("rocketmq_pop_revive_out_message_total", "Checkpoints and acks read.", statistics.REVIVE_OUT_NUMS, False),
            ("rocketmq_pop_revive_retry_messages_total", "Leases that came back.", statistics.REVIVE_RETRY_NUMS, True),
        )
        for name, help_text, counted, is_put in counters:
            samples = [(_of_lease(key, is_put), counter.value) for key, counter in self._stats.counters(counted)]
            yield from self._family(name, "counter", help_text, samples)
        lag = self._reviving.lag()
        behind: list[_Sample] = [({"queue_id": str(queue_id)}, messages) for queue_id, messages, _ in lag]
        yield from self._family("rocketmq_pop_revive_lag_milliseconds", "gauge", "Entries not done.", behind)
        late: list[_Sample] = [({"queue_id": str(queue_id)}, late_ms) for queue_id, _, late_ms in lag]
        yield from self._family("rocketmq_pop_revive_latency_milliseconds", "gauge", "How late the first is.", late)
        yield from self._family("rocketmq_pop_offset_buffer_size", "gauge", "Always 0: nothing is held.", [({}, 0)])
        yield from self._family(
            "rocketmq_pop_checkpoint_buffer_size", "gauge", "Open leases in memory.", [({}, len(self._open_leases))]
        )

    async def _about_lag(self) -> list[str]:
        samples: list[list[_Sample]] = [[] for _ in _LAGS]
        for group in list(self._groups.all()):
            for topic in self._progress.topics_of(group):
                backlog = self._progress.backlog(group, topic)
                labels = {
                    "consumer_group": group,
                    "topic": topic,
                    "is_retry": _flag(topic.startswith(names.RETRY_PREFIX)),
                    "is_system": self._is_system(topic, group),
                }
                leased = self._open_leases.in_flight_of(topic, group)
                values = (
                    backlog.messages + leased,
                    self._age_ms(backlog.oldest_stored_ms),
                    backlog.in_flight + leased,
                    self._age_ms(backlog.oldest_unfetched_ms),
                    backlog.messages - backlog.in_flight,
                )
                for family, value in zip(samples, values, strict=True):
                    family.append((labels, value))
            await asyncio.sleep(0)
        return [
            line
            for (name, help_text), family in zip(_LAGS, samples, strict=True)
            for line in self._family(name, "gauge", help_text, family)
        ]

    # ---- labels

    def _of_topic(self, topic: str) -> dict[str, str]:
        config = self._topics.get(topic)
        kind = config.attributes.get("message.type", "NORMAL") if config is not None else "NORMAL"
        return {"topic": topic, "message_type": kind.lower(), "is_system": _flag(self._topics.is_system(topic))}

    def _of_reader(self, key: str) -> dict[str, str]:
        topic, _, group = key.partition("@")
        return {"topic": topic, "consumer_group": group, "is_system": self._is_system(topic, group)}

    def _is_system(self, topic: str, group: str) -> str:
        return _flag(self._topics.is_system(topic) or names.is_system_group(group))

    def _age_ms(self, since_ms: int | None) -> int:
        return max(0, self._clock.now_ms() - since_ms) if since_ms is not None else 0

    def _histogram(
        self, name: str, help_text: str, bounds: Sequence[int], spreads: Iterable[tuple[dict[str, str], Spread]]
    ) -> Iterator[str]:
        ends = [*(f"{float(bound)}" for bound in bounds), "+Inf"]
        first = True
        for labels, (counts, total) in spreads:
            if first:
                yield from _heading(name, "histogram", help_text)
                first = False
            yield self._sample(f"{name}_count", labels, sum(counts))
            yield self._sample(f"{name}_sum", labels, total)
            for end, so_far in zip(ends, accumulate(counts), strict=True):
                yield self._sample(f"{name}_bucket", {**labels, "le": end}, so_far)

    def _family(self, name: str, kind: str, help_text: str, samples: Iterable[_Sample]) -> Iterator[str]:
        """Nothing at all without a sample, as Apache shows an instrument only once it has a value."""
        first = True
        for labels, value in samples:
            if first:
                yield from _heading(name, kind, help_text)
                first = False
            yield self._sample(name, labels, value)

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> str:
        settings = self._configuration.settings
        common = {"cluster": settings.broker_cluster_name, "node_type": "broker", "node_id": settings.broker_name}
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in {**common, **labels}.items())
        return f"{name}{{{text}}} {value}"


def _heading(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _software(language: str, version: int) -> dict[str, str]:
    return {
        "language": language.lower(),
        "version": versions.name(version).lower(),
        "protocol_type": "remoting",
    }


def _of_request(kind: Kind) -> dict[str, str]:
    return {
        "protocol_type": "remoting",
        "request_code": name_of(kind.request_code, RequestCode).lower(),
        "response_code": name_of(kind.answer_code, ResponseCode).lower(),
        "is_long_polling": _flag(kind.is_held),
        "result": kind.result,
    }


def _of_lease(key: str, is_put: bool) -> dict[str, str]:
    topic, group, *more = key.split("@")
    labels = {"consumer_group": group, "topic": topic}
    labels |= dict(zip(("revive_message_type", "queue_id"), more, strict=False))
    return {**labels, "put_status": "PUT_OK"} if is_put else labels


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
