"""The topics of this broker: their queues, permissions and attributes. Java: TopicConfigManager"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.broker import names
from orbitmq.broker.saved_table import SavedTable
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.topics import PERM_INHERIT, PERM_READ, PERM_WRITE
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage.files import is_file_name
from orbitmq.storage.tables import DataVersion, TopicConfig, TopicTable
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.rates import PerMinute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.storage.json_file import JsonFile

logger = logging.getLogger(__name__)

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_ALL: Final = PERM_READ | PERM_WRITE | PERM_INHERIT
_BENCHMARK_QUEUES: Final = 1024
_CLUSTER_QUEUES: Final = 16
MOST_QUEUES: Final = 65536

# attribute -> its values; None: any text. Java: TopicAttributes
_ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
_FIXED_AT_CREATION: Final = frozenset({"queue.type", "cleanup.policy"})


class Topics:
    def __init__(
        self,
        file: JsonFile[TopicTable],
        configuration: BrokerConfiguration,
        clock: Clock,
        refusals: Refusals | None = None,
    ) -> None:
        table = file.load()
        self.version = table.data_version
        self._topics = table.topic_config_table
        self._unknown = table.unknown
        self._configuration = configuration
        self._clock = clock
        self._has_light_queues = configuration.settings.enable_lmq
        self._creations = PerMinute(
            "orbitmq.topicsCreatedPerMinute",
            "new topics",
            lambda: configuration.settings.topics_created_per_minute,
            clock,
            refusals or Refusals(),
        )
        self._saved = SavedTable(file, self._snapshot)
        self._new: set[str] = set()  # and perhaps not on disk yet
        self._on_change: Callable[[list[TopicConfig]], None] = lambda topics: None
        self._system: set[str] = set(names.SYSTEM_TOPICS)
        self._made_at_start = self._create_system_topics()

    def when_changed(self, listener: Callable[[list[TopicConfig]], None]) -> None:
        """`listener` hears of created and changed topics, so that it can tell the name servers."""
        self._on_change = listener

    # ---- questions

    def get(self, topic: str) -> TopicConfig | None:
        config = self._topics.get(topic)
        if config is None and self._has_light_queues and topic.startswith(names.LIGHT_PREFIX) and is_file_name(topic):
            # In no table: there may be more of them than topics, and a message makes one by naming it.
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return config

    def is_unkept(self, topic: str) -> bool:
        """Whether it was just made, and a broker that is killed now would not know of it."""
        if self._new and self._saved.is_settled:
            self._new.clear()
        return topic in self._new

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """One that is read or written."""
        config = self.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def require(self, topic: str) -> TopicConfig:
        config = self.get(topic)
        if config is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic[:300]!r} does not exist on this broker",
                hint="create it, or start the broker with autoCreateTopicEnable=true",
            )
        return config

    def all(self) -> dict[str, TopicConfig]:
        return self._topics

    def is_system(self, topic: str) -> bool:
        return topic in self._system or topic.startswith(names.SYSTEM_TOPIC_PREFIX)

    def system_topics(self) -> list[str]:
        return sorted(self._system)

    def is_batch(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.attributes.get("queue.type") == "BatchCQ"

    # ---- changes

    def create_for_send(
        self, topic: str, template_name: str, wanted_queues: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """A topic made by the first send to it, after its template; None when that is not allowed."""
        template = self._topics.get(template_name)
        if template is None:
            return None
        if template_name == names.AUTO_CREATE_TOPIC and not self._configuration.settings.auto_create_topic_enable:
            return None
        if not template.perm & PERM_INHERIT or wanted_queues <= 0:
            return None
        self._creations.take()
        queues = min(wanted_queues, template.write_queue_nums)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self._put(config)
        logger.info("created topic %s with %d queues, after %s, at its first message", topic, queues, template_name)
        return config

    def create_internal(self, topic: str, queues: int, perm: int = _READ_WRITE, sys_flag: int = 0) -> TopicConfig:
        """The topic, made if need be: retry and dead-letter topics, replies. RequestFailed if none can have this name."""
        config = self._topics.get(topic)
        if config is None:
            if not is_file_name(topic):
                raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"{topic[:300]!r} cannot be a topic")
            config = TopicConfig(
                topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
            )
            self._put(config)
        return config

    async def update(self, wanted: Iterable[tuple[TopicConfig, str]]) -> None:
        """Create or change topics as an operator asks, each with changes of its attributes (`+key=value,-key`).

        All are checked before any is changed. The attributes in the configs themselves do not count.
        """
        checked = [self._checked(config, attribute_changes) for config, attribute_changes in wanted]
        changed = [config for config in checked if self._topics.get(config.topic_name) != config]
        if not changed:
            return
        self._creations.take(len({config.topic_name for config in changed} - self._topics.keys()))
        for config in changed:
            self._topics[config.topic_name] = config
        self._bump()
        self._on_change(changed)
        await self._saved.save()

    async def take_over(self, table: TopicTable) -> None:
        """A slave has the topics of its master, in the version they have there."""
        if table.data_version == self.version:
            return
        self._topics.clear()
        self._topics.update(table.topic_config_table)
        self._create_system_topics()
        self.version = table.data_version
        self._on_change(list(self._topics.values()))
        await self._saved.save()

    def announce_all(self) -> None:
        """What the name servers know of all topics has changed, though the topics have not: the broker's permission."""
        self._bump()
        self._on_change(list(self._topics.values()))

    async def delete(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if self._topics.pop(topic, None) is not None:
                logger.info("deleted topic %s", topic)
        self._bump()
        await self._saved.save()

    def mark_ordered(self, ordered: Iterable[str]) -> None:
        """What a name server says: these topics are ordered.

        It says nothing of the others. Name servers do not tell each other, and of a topic that is just being made none knows yet.
        """
        found = [config for topic in ordered if (config := self._topics.get(topic)) is not None and not config.order]
        for config in found:
            self._topics[config.topic_name] = msgspec.structs.replace(config, order=True)
        if found:
            self._bump()
            self._saved.save_soon()

    async def keep_system_topics(self) -> None:
        """Before anything is in them: after a kill they say in which revive queues leases are, and of which names of the broker."""
        if self._made_at_start:
            await self.save()

    async def save(self) -> None:
        await self._saved.save_or_log()

    async def settle(self) -> None:
        await self._saved.settle()

    def _put(self, config: TopicConfig) -> None:
        self._new.add(config.topic_name)
        self._topics[config.topic_name] = config
        self._bump()
        self._saved.save_soon()
        self._on_change([config])

    def _bump(self) -> None:
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock.now_ms())

    def _snapshot(self) -> TopicTable:
        # A config is replaced, never changed in place, so a copy of the map is enough.
        return TopicTable(data_version=self.version, topic_config_table=dict(self._topics), unknown=self._unknown)

    def _checked(self, wanted: TopicConfig, attribute_changes: str) -> TopicConfig:
        topic = wanted.topic_name
        names.check_topic_name(topic)
        if self.is_system(topic):
            raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
        if wanted.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"topicFilterType {wanted.topic_filter_type!r} is unknown",
                hint="SINGLE_TAG or MULTI_TAG",
            )
        if not 0 <= wanted.perm <= _ALL:
            raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"perm {wanted.perm} is none", hint="2 W, 4 R, 6 RW")
        if not (0 <= wanted.read_queue_nums <= MOST_QUEUES and 0 <= wanted.write_queue_nums <= MOST_QUEUES):
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"a topic cannot have {wanted.read_queue_nums} queues for readers and {wanted.write_queue_nums} for writers",
                hint=f"of each from 0 to {MOST_QUEUES}",
            )
        current = self._topics.get(topic)
        attributes = alter_attributes(current.attributes if current is not None else None, attribute_changes)
        return msgspec.structs.replace(wanted, attributes=attributes)

    def _create_system_topics(self) -> bool:
        """What every broker has from the start, queues and permissions as Java makes them. Whether some of it was not there."""
        settings = self._configuration.settings
        cluster, broker = settings.broker_cluster_name, settings.broker_name
        wanted = [
            (names.SELF_TEST_TOPIC, 1, _READ_WRITE),
            (names.BENCHMARK_TOPIC, _BENCHMARK_QUEUES, _READ_WRITE),
            (cluster, _CLUSTER_QUEUES, _ALL if settings.cluster_topic_enable else PERM_INHERIT),
            (broker, 1, _ALL if settings.broker_topic_enable else PERM_INHERIT),
            (names.OFFSET_MOVED_TOPIC, 1, _READ_WRITE),
            (names.DELAY_TOPIC, len(settings.delay_levels_ms()), _READ_WRITE),
            (f"{cluster}_REPLY_TOPIC", 1, _READ_WRITE),
            (names.revive_topic(cluster), settings.revive_queue_num, _READ_WRITE),
            (names.members_topic(broker), 1, PERM_INHERIT),
            (names.HALF_TOPIC, 1, _READ_WRITE),
            (names.HALF_OP_TOPIC, 1, _READ_WRITE),
            (names.TIMER_TOPIC, 1, _READ_WRITE),
        ]
        if settings.auto_create_topic_enable:
            wanted.append((names.AUTO_CREATE_TOPIC, settings.default_topic_queue_nums, _ALL))
        if settings.trace_topic_enable:
            wanted.append((settings.msg_trace_topic_name, 1, _READ_WRITE))
        is_changed = False
        for topic, queues, perm in wanted:
            self._system.add(topic)
            known = self._topics.get(topic)
            # The revive topic remembers the most queues it ever had: leases may be in each of them.
            if known is None or (topic == names.revive_topic(cluster) and known.read_queue_nums < queues):
                is_changed = True
                self._topics[topic] = TopicConfig(
                    topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                )
        return is_changed


def alter_attributes(current: dict[str, str] | None, changes: str) -> dict[str, str]:
    """Apply `+key=value,-key`. `current` is None for a new topic, which can only be given attributes."""
    attributes = dict(current or {})
    named = set()
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, _, value = change[1:].partition("=")
        if change[0] not in "+-" or key not in _ATTRIBUTES:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"attribute change {change!r} is not understood",
                hint=f"+key=value or -key, with key one of {', '.join(_ATTRIBUTES)}",
            )
        if key in named:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"key duplication: {key}")
        named.add(key)
        if change[0] == "-":
            if current is None:
                raise RequestFailed(ResponseCode.SYSTEM_ERROR, "only add attribute is supported while creating topic")
            if key in _FIXED_AT_CREATION and current.get(key, _ATTRIBUTES[key][0]) != _ATTRIBUTES[key][0]:
                raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"attempt to update an unchangeable attribute: {key}")
            attributes.pop(key, None)
            continue
        if value not in _ATTRIBUTES[key]:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR, f"{key}={value} cannot be", hint=f"one of {', '.join(_ATTRIBUTES[key])}"
            )
        if current is not None and key in _FIXED_AT_CREATION and current.get(key, _ATTRIBUTES[key][0]) != value:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"attempt to update an unchangeable attribute: {key}")
        attributes[key] = value
    return attributes
