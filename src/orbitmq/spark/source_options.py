"""What a read was told: which queues, which messages of them, from where to where, and how much at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, cast

from orbitmq.client.filters import Sql, Subscription, subscription
from orbitmq.client.names import check_group, check_topic_name
from orbitmq.client.namespaces import unwrapped, wrapped
from orbitmq.errors import ConfigError, MessageError
from orbitmq.message import QueueRef
from orbitmq.spark import access as access_options
from orbitmq.spark.access import Access, access_from
from orbitmq.spark.options import Options
from orbitmq.spark.queue_offsets import EARLIEST, LATEST, Offsets, parse_moments, parse_offsets, parse_queues
from orbitmq.spark.schema import table_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from orbitmq.spark.schema import PropertiesForm

Anchor = Literal["earliest", "latest", "group", "offsets", "time"]
WhenNone = Literal["error", "latest"]

DEFAULT_GROUP: Final = "orbitmq-spark"
_PULL_BATCH: Final = 16_384
_DRIVER_ROWS: Final = 1000

# The name of each option, and the names under which rocketmq-spark and Kafka's source knew it.
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    **access_options.OPTIONS,
    "subscribe": ("topic", "consumer.topic"),
    "subscribePattern": (),
    "assign": (),
    "tags": ("subExpression", "consumer.tag"),
    "filterSql": (),
    "startingOffsets": ("consumer.offset.reset.to",),
    "startingTimestamp": (),
    "startingOffsetsByTimestamp": (),
    "startingOffsetsByTimestampStrategy": (),
    "endingOffsets": (),
    "endingTimestamp": (),
    "endingOffsetsByTimestamp": (),
    "newGroupOffsets": (),
    "groupId": ("group", "consumer.group", "kafka.group.id"),
    "commitOffsets": (),
    "failOnDataLoss": (),
    "minPartitions": (),
    "maxPartitions": (),
    "maxOffsetsPerTrigger": (),
    "minOffsetsPerTrigger": (),
    "maxTriggerDelay": (),
    "maxBytesPerTrigger": (),
    "driverRows": (),
    "discoveryInterval": (),
    "retryTimeout": (),
    "pullBatchSize": ("pull.max.batch.size",),
    "readFromSlaves": (),
    "pushFilters": (),
    "columns": (),
    "includeBody": (),
    "properties": (),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read."""

    anchor: Anchor
    offsets: Offsets = field(default_factory=dict)  # by "offsets"; those not named are earliest or latest
    time_ms: int | None = None  # by "time", for queues that `times` does not name
    times: Offsets = field(default_factory=dict)
    when_none: WhenNone = "error"  # by "time", for a queue without a message that late

    @property
    def moves(self) -> bool:
        """Whether who asks again later finds it elsewhere."""
        if self.anchor == "time":
            return self.when_none == "latest"
        return self.anchor in ("latest", "group") or LATEST in self.offsets.values()


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch takes."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    access: Access
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[QueueRef, ...]
    tags: str
    sql: str
    starting: Bound
    ending: Bound
    new_group: str
    group: str
    commit: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int | None
    limits: TriggerLimits
    driver_rows: int
    discovery_ms: int
    retry_ms: int
    pull_batch: int
    from_slaves: bool
    push_filters: bool

    def names(self, queue: QueueRef) -> bool:
        """Whether a queue is among those that are to be read, should it be there."""
        if self.assigned:
            return queue in self.assigned
        if self.topics:
            return queue.topic in self.topics
        namespace = self.access.namespace
        is_inside = wrapped(namespace, queue.topic) == queue.topic
        return is_inside and re.fullmatch(self.pattern, unwrapped(namespace, queue.topic)) is not None

    def subscription(self, topic: str) -> Subscription:
        return subscription(topic, Sql(self.sql) if self.sql else self.tags or None, 0)


def source_schema(given: Mapping[str, str]) -> StructType:
    """The schema of a read that has none of its own. Checks all options, so that their errors come first and early."""
    options = Options(given, OPTIONS, "the rocketmq source")
    source_options(given, streaming=False, checking=True)
    form = options.choice("properties", "map", ("map", "raw", "none"))
    return table_schema(
        options.text("columns") or None,
        include_body=options.flag("includeBody", True),
        properties=cast("PropertiesForm", form),
    )


def source_options(given: Mapping[str, str], *, streaming: bool, checking: bool = False) -> SourceOptions:
    """`checking`: it is not known yet which kind of query this is for; rules that hold for one kind only are left out."""
    options = Options(given, OPTIONS, "the rocketmq source")
    topics, pattern, assigned = _queues_wanted(options)
    tags, sql = options.text("tags"), options.text("filterSql")
    if sql and tags and tags != "*":
        raise ConfigError(
            "options tags and filterSql are both given", hint="say it all in filterSql: TAGS IN ('a', 'b')"
        )
    group = options.text("groupId")
    if group:
        check_group(group)
    commit = options.flag("commitOffsets", False)
    starting = _starting(options, streaming=streaming, checking=checking)
    if not group and (commit or starting.anchor == "group"):
        raise ConfigError(
            "commitOffsets=true and startingOffsets=group need a group", hint='.option("groupId", "my-group")'
        )
    if starting.anchor == "latest" and not streaming and not checking:
        raise ConfigError("a batch read from the latest offsets reads nothing", hint="startingOffsets=earliest")
    made = SourceOptions(
        access=access_from(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        tags=tags,
        sql=sql,
        starting=starting,
        ending=_ending(options, streaming=streaming and not checking),
        new_group=options.choice("newGroupOffsets", "earliest", ("earliest", "latest", "error")),
        group=group or DEFAULT_GROUP,
        commit=commit,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_partitions=options.number("minPartitions"),
        max_partitions=options.number("maxPartitions"),
        limits=_limits(options),
        driver_rows=options.number("driverRows", _DRIVER_ROWS, at_least=0) or 0,
        discovery_ms=options.duration_ms("discoveryInterval", 10_000),
        retry_ms=options.duration_ms("retryTimeout", 60_000),
        pull_batch=options.number("pullBatchSize", _PULL_BATCH) or _PULL_BATCH,
        from_slaves=options.flag("readFromSlaves", True),
        push_filters=options.flag("pushFilters", False),
    )
    made.subscription("any")  # a filter that names nothing shows here
    if made.min_partitions and made.max_partitions and made.min_partitions > made.max_partitions:
        raise ConfigError("minPartitions is above maxPartitions")
    return _in_namespace(made) if made.access.namespace else made


def _in_namespace(named: SourceOptions) -> SourceOptions:
    """With all names as the servers know them."""
    namespace = named.access.namespace

    def inside(queue: QueueRef) -> QueueRef:
        return QueueRef(wrapped(namespace, queue.topic), queue.broker_name, queue.queue_id)

    def bound(one: Bound) -> Bound:
        return replace(
            one,
            offsets={inside(queue): offset for queue, offset in one.offsets.items()},
            times={inside(queue): time_ms for queue, time_ms in one.times.items()},
        )

    return replace(
        named,
        topics=tuple(wrapped(namespace, topic) for topic in named.topics),
        assigned=tuple(map(inside, named.assigned)),
        starting=bound(named.starting),
        ending=bound(named.ending),
        group=wrapped(namespace, named.group),
    )


def _queues_wanted(options: Options) -> tuple[tuple[str, ...], str, tuple[QueueRef, ...]]:
    ways = options.given("subscribe", "subscribePattern", "assign")
    if len(ways) != 1:
        said = f"{' and '.join(ways)} are all given" if ways else "nothing says which topics to read"
        raise ConfigError(
            said, hint="give one of subscribe (Orders,Payments), subscribePattern (Ord.*) or assign (JSON)"
        )
    pattern = options.text("subscribePattern")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"subscribePattern {pattern!r} is no regular expression: {error}") from error
    topics = tuple(dict.fromkeys(name.strip() for name in options.text("subscribe").split(",") if name.strip()))
    for topic in topics:
        try:
            check_topic_name(topic)
        except MessageError as error:
            raise ConfigError(error.message, hint=error.hint) from error
    assigned = tuple(parse_queues(options.text("assign"), "assign")) if options.text("assign") else ()
    return topics, pattern, assigned


def _starting(options: Options, *, streaming: bool, checking: bool) -> Bound:
    when_none = options.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    by_time = _by_time(options, "starting", cast("WhenNone", when_none))
    if by_time is not None:
        return by_time
    text = options.text("startingOffsets", "latest" if streaming else "earliest")
    if text.lower() in ("earliest", "latest", "group"):
        return Bound(cast("Anchor", text.lower()))
    offsets = parse_offsets(text, "startingOffsets")
    if not streaming and not checking and LATEST in offsets.values():
        raise ConfigError("a batch read cannot start at the latest offset (-1)", hint="-2 is the earliest")
    return Bound("offsets", offsets)


def _ending(options: Options, *, streaming: bool) -> Bound:
    given = options.given("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming and given:
        raise ConfigError(
            f"a streaming read has no end, but {given[0]} is given", hint="leave it out, or use spark.read"
        )
    by_time = _by_time(options, "ending", "latest")
    if by_time is not None:
        return by_time
    text = options.text("endingOffsets", "latest")
    if text.lower() == "latest":
        return Bound("latest")
    if text.lower() == "earliest":
        raise ConfigError("a read that ends at the earliest offsets reads nothing", hint="endingOffsets=latest")
    offsets = parse_offsets(text, "endingOffsets")
    if EARLIEST in offsets.values():
        raise ConfigError("a read cannot end at the earliest offset (-2)", hint="-1 is the latest")
    return Bound("offsets", offsets)


def _by_time(options: Options, end: str, when_none: WhenNone) -> Bound | None:
    ways = options.given(f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp")
    time_ways = [way for way in ways if way != f"{end}Offsets"]
    if not time_ways:
        return None
    if f"{end}Offsets" in ways:
        raise ConfigError(f"{' and '.join(ways)} say the same thing twice", hint=f"keep {time_ways[0]}")
    by_queue = options.text(f"{end}OffsetsByTimestamp")
    times = parse_moments(by_queue, f"{end}OffsetsByTimestamp") if by_queue else {}
    return Bound("time", time_ms=options.moment_ms(f"{end}Timestamp"), times=times, when_none=when_none)


def _limits(options: Options) -> TriggerLimits:
    limits = TriggerLimits(
        max_offsets=options.number("maxOffsetsPerTrigger"),
        min_offsets=options.number("minOffsetsPerTrigger"),
        max_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        max_bytes=options.size("maxBytesPerTrigger"),
    )
    if limits.max_offsets and limits.min_offsets and limits.min_offsets > limits.max_offsets:
        raise ConfigError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    return limits
