"""Putting messages into the store, with everything a broker adds or changes on the way in.

The usual send takes the short way: its properties are looked at as text, completed by appending, and never taken apart.
Delays and retries take the long way.

Java: SendMessageProcessor, HookUtils
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names, retry_topics, statistics, timer_requests
from orbitmq.broker.histograms import MessageSizes
from orbitmq.broker.timer_requests import Place, park_timer
from orbitmq.errors import RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.hosts import pack_host
from orbitmq.message.properties import decode_properties, encode_properties, extend_properties, join_properties
from orbitmq.message.sysflags import INNER_BATCH, TRANSACTION_MASK
from orbitmq.protocol.bodies.topics import PERM_WRITE, SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.recall_handles import RecallHandle

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from orbitmq.broker.groups import Groups
    from orbitmq.broker.queue_locks import QueueLocks
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Counter, Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.message.ids import UniqueIds
    from orbitmq.protocol.headers.send import SendMessage, SendMessageV2
    from orbitmq.storage.appended import Appended
    from orbitmq.storage.store import Store
    from orbitmq.storage.tables import TopicConfig

packed_host: Final = lru_cache(maxsize=65_536)(pack_host)

_SEPARATOR: Final = "\x02"
_UNIQUE_KEY: Final = "UNIQ_KEY\x01"
_WAIT: Final = "WAIT\x01"
_WAIT_TRUE: Final = "WAIT\x01true\x02"
# Text whose presence sends a message the long way.
_DELAY: Final = "DELAY\x01"
_TIMER: Final = "TIMER_"
_HALF: Final = "TRAN_MSG\x01"
_INNER: Final = "INNER_NUM\x01"
_HANDLE: Final = "POP_CK\x01"
_SMALL_BYTES, _MIDDLE_BYTES = MessageSizes.BOUNDS[:2]
_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]{1,10})")
_INT: Final = range(-(2**31), 2**31)  # Java's
_MOST_ATTEMPTS: Final = _INT[-1]
# What consumers put there is no half message, though it may have been: clients before 4.6.1 send its properties as they got them.
_GIVEN_BACK: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX)
_WISHES: Final = (keys.PREPARED, *timer_requests.REQUESTS, keys.TIMER_DELETE_UNIQUE_KEY)


class TopicCounters(NamedTuple):
    """Messages, their bytes, and how large they are."""

    nums: Counter
    sizes: Counter
    spread: MessageSizes


class WaitingTerms(NamedTuple):
    """What this broker grants messages that have to wait."""

    delay_levels: int
    takes_halves: bool  # of transactions
    takes_timers: bool
    longest_timer_ms: int
    timer_precision_ms: int
    limits_moments: bool  # it may be that no more timers are taken for one
    broker_name: str


class PlainTopic:
    """A topic that takes plain messages without further questions, and what counts them."""

    __slots__ = ("_all", "_nums", "_sizes", "_spread", "queue_keys", "queues")

    def __init__(self, topic: str, queues: int, counters: TopicCounters, all_puts: Counter) -> None:
        self.queues = queues
        self.queue_keys = [(topic, queue_id) for queue_id in range(queues)]
        self._nums, self._sizes, self._spread = counters
        self._all = all_puts

    def count(self, size: int) -> None:
        """One more message. As `Sending.count`, without a call for each counter."""
        nums, sizes, everything = self._nums, self._sizes, self._all
        nums.value += 1
        nums.times += 1
        sizes.value += size
        sizes.times += 1
        everything.value += 1
        everything.times += 1
        if size > _MIDDLE_BYTES:
            self._spread.note(size)
        elif size > _SMALL_BYTES:
            self._spread.larger[0] += 1

    def count_run(self, messages: int, size: int) -> None:
        """So many more messages, that many bytes together. Of their sizes, the average counts."""
        nums, sizes, everything = self._nums, self._sizes, self._all
        nums.value += messages
        nums.times += messages
        sizes.value += size
        sizes.times += messages
        everything.value += messages
        everything.times += messages
        if size > _SMALL_BYTES * messages:
            self._spread.note(size // messages, messages)


class Sending:
    """The way in. One for the broker; handlers and internal writers share it."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
        unique_ids: UniqueIds,
        randomness: random.Random,
    ) -> None:
        self.store = store
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self._unique_ids = unique_ids
        self._random = randomness
        self.refusal = ""  # why every send is refused; empty: none is
        self.stalled_ms = 0  # how long the broker stood still just now; sends are refused until it runs again
        self.on_half_message: Callable[[Appended, str], None] = lambda appended, topic: None
        # Whether whoever sends to a topic has to wait, with the one who just made it.
        self.is_awaited: Callable[[str], bool] = lambda topic: False
        self.is_moment_full: Callable[[int], bool] = lambda due_ms: False  # whether no more timers are taken for it
        self._puts: dict[str, TopicCounters] = {}
        self._plain: dict[str, PlainTopic] = {}
        self._terms_as_of: tuple[object, object] = (None, None)  # settings and levels that `_terms` was made of
        self._plain_as_of: tuple[object, object] = (None, None)  # topics and settings that `_plain` was made of
        settings = configuration.settings
        self.all_puts = stats.counter(statistics.BROKER_PUT_NUMS, settings.broker_cluster_name)
        self.suffix = encode_properties(
            {
                keys.REGION: settings.region_id,
                keys.TRACE_ON: "true" if settings.trace_on else "false",
                keys.CLUSTER: settings.broker_cluster_name,
            }
        )  # of every message's properties
        self._suffix = self.suffix.decode()

    # ---- checks, in Java's order

    def check_open(self) -> None:
        """Whether this broker takes sends at all now."""
        if self.refusal:
            raise RequestFailed(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{self.refusal}")
        if self.stalled_ms:
            raise RequestFailed(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker busy: it stood still for {self.stalled_ms} ms",
                hint="the disk or the machine is overloaded; send again in a moment",
            )
        starts_ms = self._configuration.settings.start_accept_send_request_time_stamp
        if starts_ms and self._clock.now_ms() < starts_ms:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {starts_ms} (startAcceptSendRequestTimeStamp)",
            )

    def topic_for(self, header: SendMessage | SendMessageV2) -> TopicConfig:
        """The topic to send to, created if that is how this broker does it.

        Apache's broker leaves write permissions to the clients, which see them in the route. A broker that takes what it
        is told not to take is plainly wrong, so here they count.
        """
        topic = header.topic
        config = self._topics.get(topic)
        if config is None or names.is_closed(topic):
            config = self._unusual_topic(header)
        settings = self._configuration.settings
        if not config.perm & settings.broker_permission & PERM_WRITE:
            whose = f"topic {topic}" if not config.perm & PERM_WRITE else f"broker {settings.broker_name}"
            raise RequestFailed(
                ResponseCode.NO_PERMISSION,
                f"{whose} does not take messages: it has no write permission",
                hint="give it perm 6 (brokerPermission=6 for a broker)",
            )
        return config

    def _unusual_topic(self, header: SendMessage | SendMessageV2) -> TopicConfig:
        topic = header.topic
        names.check_topic_name(topic)
        if names.is_closed(topic):
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        is_retry = topic.startswith(names.RETRY_PREFIX)
        if is_retry:  # of a group that is not there none is left behind
            self._groups.require(retry_topics.group_of(self._groups, self._topics, topic, header.properties))
        sys_flag = 0
        if header.unit_mode:
            sys_flag = SYS_FLAG_UNIT_SUB if is_retry else SYS_FLAG_UNIT
        config = self._topics.create_for_send(topic, header.default_topic, header.default_topic_queue_nums, sys_flag)
        if config is None and is_retry:
            config = self._topics.create_internal(topic, 1, sys_flag=sys_flag)
        return config or self._topics.require(topic)

    def plain_topic(self, topic: str) -> PlainTopic | None:
        """The topic, if sends to it need no more than to be stored; None if the checks above must be asked."""
        known_topics, known_settings = self._plain_as_of
        if known_topics is not self._topics.version or known_settings is not self._configuration.settings:
            self._plain.clear()
            self._plain_as_of = (self._topics.version, self._configuration.settings)
        if self.refusal or self.stalled_ms:
            return None
        return self._plain.get(topic) or self._learn_plain(topic)

    def _learn_plain(self, topic: str) -> PlainTopic | None:
        config, settings = self._topics.get(topic), self._configuration.settings
        if (
            config is None
            or names.is_closed(topic)
            or topic.startswith(_GIVEN_BACK)
            or config.attributes
            or config.topic_filter_type == "MULTI_TAG"
            or not config.perm & settings.broker_permission & PERM_WRITE
            or settings.start_accept_send_request_time_stamp
            or self.is_awaited(topic)
        ):
            return None
        queues = max(config.write_queue_nums, config.read_queue_nums)
        plain = self._plain[topic] = PlainTopic(topic, queues, self._counters(topic), self.all_puts)
        return plain

    def waiting_terms(self) -> WaitingTerms:
        """The same object until they change."""
        settings, levels_ms = self._configuration.settings, self.store.delay_levels_ms
        known_settings, known_levels = self._terms_as_of
        if known_settings is not settings or known_levels is not levels_ms:
            self._terms = WaitingTerms(
                delay_levels=len(levels_ms),
                takes_halves=not settings.reject_transaction_message,
                takes_timers=settings.timer_wheel_enable,
                longest_timer_ms=settings.timer_max_delay_sec * 1000,
                timer_precision_ms=settings.timer_precision_ms,
                limits_moments=settings.timer_congest_num_each_slot != timer_requests.NO_LIMIT,
                broker_name=settings.broker_name,
            )
            self._terms_as_of = (settings, levels_ms)
        return self._terms

    def queue_for(self, header: SendMessage | SendMessageV2, topic: TopicConfig) -> int:
        queue_id = header.queue_id
        if queue_id < 0:
            return self._random.randrange(topic.write_queue_nums) if topic.write_queue_nums > 0 else 0
        if queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {topic.topic_name} has {topic.write_queue_nums} queues",
            )
        return queue_id

    # ---- the way in

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        born_at_ms: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> tuple[Appended, str, str]:
        """Append a message as a client sent it; also the unique key it has now, and what takes a timer message back."""
        asked_for = topic
        if _HANDLE in properties:
            properties = without_handle(properties)
        properties, unique_key = self.complete(properties)
        recall_handle = ""
        if is_special(properties) or sys_flag & INNER_BATCH:
            topic, queue_id, properties, due_ms = self._special(topic, queue_id, properties, sys_flag)
            if due_ms:
                recall_handle = self._recall_handle(asked_for, due_ms, unique_key)
        if topic == names.HALF_TOPIC or asked_for.startswith(_GIVEN_BACK):
            sys_flag &= ~TRANSACTION_MASK
        encoded = properties.encode("utf-8", "replace")
        appended = self.store.append(
            topic, queue_id, body, encoded, born_at_ms, born_host, flag, sys_flag, reconsume_times
        )
        if topic == names.HALF_TOPIC:
            self.on_half_message(appended, asked_for)
        self.count(topic, 1, appended.end - appended.commit_log_offset)
        return appended, unique_key, recall_handle

    def _recall_handle(self, topic: str, due_ms: int, unique_key: str) -> str:
        """Nothing for what waits to be retried."""
        if topic.startswith(names.RETRY_PREFIX):
            return ""
        # Java adds one ms, so that aligning it to the wheel again finds the same slot.
        return RecallHandle(topic, self._configuration.settings.broker_name, due_ms + 1, unique_key).text()

    def complete(self, properties: str) -> tuple[str, str]:
        """A message's properties with what a broker adds, and the unique key among them."""
        if properties and properties[-1] != _SEPARATOR:
            properties += _SEPARATOR
        at = properties.rfind(_UNIQUE_KEY)  # of two, the later counts
        while at > 0 and properties[at - 1] != _SEPARATOR:  # the end of a longer name
            at = properties.rfind(_UNIQUE_KEY, 0, at)
        unique_key = properties[at + len(_UNIQUE_KEY) : properties.find(_SEPARATOR, at)] if at >= 0 else ""
        if not unique_key:
            unique_key = next(self._unique_ids)
            properties += f"{_UNIQUE_KEY}{unique_key}{_SEPARATOR}"
        return properties + self._suffix, unique_key

    def count(self, topic: str, messages: int, size: int) -> None:
        nums, sizes, spread = self._counters(topic)
        nums.add(messages)
        sizes.add(size)
        if size > _SMALL_BYTES * messages:  # of a batch, the average counts
            spread.note(size // messages, messages)
        self.all_puts.add(messages)

    def _counters(self, topic: str) -> TopicCounters:
        counters = self._puts.get(topic)
        if counters is None:
            counters = self._puts[topic] = TopicCounters(
                self._stats.counter(statistics.TOPIC_PUT_NUMS, topic),
                self._stats.counter(statistics.TOPIC_PUT_SIZE, topic),
                self._stats.message_sizes(topic),
            )
        return counters

    def batch_properties(self, properties: str) -> str:
        """What every member of a batch gets besides its own."""
        if _HANDLE in properties:
            properties = without_handle(properties)
        if properties and not properties.endswith(_SEPARATOR):
            properties += _SEPARATOR
        return properties + self._suffix

    def keeps_batches_whole(self, topic: str) -> bool:
        return self._topics.is_batch(topic)

    def forget_topic(self, topic: str) -> None:
        self._puts.pop(topic, None)
        self._plain.pop(topic, None)

    def _special(self, topic: str, queue_id: int, properties: str, sys_flag: int) -> Place:
        """Where a message really goes that asks for more than to be stored."""
        parsed = decode_properties(properties)
        is_inner_batch = bool(sys_flag & INNER_BATCH)
        if is_inner_batch != (keys.INNER_NUM in parsed) or (is_inner_batch and not self._topics.is_batch(topic)):
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {topic} does not take inner batches like this one"
            )
        if parsed.get(keys.PREPARED, "").lower() == "true" and not topic.startswith(_GIVEN_BACK):
            if self._configuration.settings.reject_transaction_message:
                raise RequestFailed(
                    ResponseCode.NO_PERMISSION,
                    "the broker has sending transaction message forbidden",
                    hint="start it with rejectTransactionMessage=false",
                )
            if asks_for_delay(properties):
                self.parked(
                    topic, queue_id, properties, parsed
                )  # a delay that cannot be is refused now, not at the commit
            self.store.log.with_light_queues(topic, properties.encode("utf-8", "replace"))  # nor light queues
            return as_half_message(topic, queue_id, properties, parsed)
        return self.parked(topic, queue_id, properties, parsed) or Place(topic, queue_id, properties)

    def parked(self, topic: str, queue_id: int, properties: str, parsed: dict[str, str]) -> Place | None:
        """Where a message waits that asks for a delay; None for one that does not. A level beats a timer."""
        level = delay_level(parsed.get(keys.DELAY, "0"))
        if level > 0 and topic != names.DELAY_TOPIC:
            return park_delayed(topic, queue_id, properties, parsed, min(level, len(self.store.delay_levels_ms)))
        settings = self._configuration.settings
        return park_timer(topic, queue_id, properties, parsed, settings, self._clock.now_ms(), self.is_moment_full)

    # ---- retries

    def redirect_exhausted(
        self, header: SendMessage | SendMessageV2, version: int, properties: str
    ) -> tuple[str, int, str]:
        """Where a send to a retry topic goes: to the dead letters, once it was retried too often. Java: handleRetryAndDLQ"""
        group = retry_topics.group_of(self._groups, self._topics, header.topic, properties)
        config = self._groups.require(group)
        limit = config.retry_max_times
        if header.max_reconsume_times is not None and version >= _FIRST_WITH_MAX_RECONSUME:
            limit = header.max_reconsume_times
        exhausted = header.reconsume_times > limit
        came_back_from_lease = group != names.group_of_retry_topic(header.topic)
        # A group that consumes in order does not wait for a retry: it goes on behind the dead letter.
        # A consumer that gives up says how often it tried, or may. Who sends a dead letter again says neither.
        gives_up = header.reconsume_times > 0 or header.max_reconsume_times is not None
        if not exhausted and (came_back_from_lease or not gives_up or not self._locks.is_any_held(group)):
            return header.topic, header.queue_id, properties
        dead = self._topics.create_internal(names.dead_letter_topic(group), 1)
        self._stats.counter(statistics.DLQ_PUT_NUMS, f"{header.topic}@{group}").add(1)
        parsed = decode_properties(properties)
        parsed[keys.DELAY] = "-1"
        return (
            dead.topic_name,
            self._random.randrange(max(1, dead.write_queue_nums)),
            encode_properties(parsed).decode(),
        )


_FIRST_WITH_MAX_RECONSUME: Final = 121  # 3.4.9


def delay_level(text: str) -> int:
    """RequestFailed where Integer.parseInt fails."""
    found = _NUMBER.fullmatch(text)
    level = int(found[1] + found[2]) if found is not None else None
    if level is None or level not in _INT:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"delay level {text[:20]!r} is not a number")
    return level


def park_delayed(topic: str, queue_id: int, properties: str, parsed: Mapping[str, str], level: int) -> Place:
    """A delayed message waits in a topic of the broker's own, one queue per level, with its real goal in its properties."""
    added = {keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id)}
    if parsed[keys.DELAY] != str(level) or not parsed.keys().isdisjoint(timer_requests.REQUESTS):
        parsed = {key: value for key, value in parsed.items() if key not in timer_requests.REQUESTS}
        added = {keys.DELAY: str(level), **added}
    return Place(names.DELAY_TOPIC, level - 1, extend_properties(properties, parsed, added))


def as_half_message(topic: str, queue_id: int, properties: str, parsed: Mapping[str, str]) -> Place:
    """Where a half message goes, and the properties that say where it belongs."""
    transaction = parsed.get(keys.UNIQUE_KEY, "")
    added = {keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id), keys.TRANSACTION_ID: transaction}
    return Place(names.HALF_TOPIC, 0, extend_properties(properties, parsed, added))


def is_special(properties: str) -> bool:
    """Whether a message may ask for more than to be stored as it is. A false alarm costs only time."""
    return (
        _DELAY in properties
        or _TIMER in properties
        or _HALF in properties
        or _INNER in properties
        or _HANDLE in properties
    )


def asks_for_delay(properties: str) -> bool:
    """Whether it may do so; a false alarm costs only time."""
    return _DELAY in properties or _TIMER in properties


def without_handle(properties: str) -> str:
    """The handle of a lease is the broker's word. Consumers believe the one in a message, and would settle another's lease by it.

    Java: SendMessageProcessor.clearReservedProperties
    """
    told = decode_properties(properties)
    return properties if told.pop(keys.POP_CHECK_POINT, None) is None else join_properties(told)


def without_wishes(properties: Mapping[str, str]) -> dict[str, str]:
    """A message's properties for a copy of it, which is not to be a half message, nor to wait for what its sender wants.

    A member of a batch may say such things, and nobody has looked. What did wait says until when (TIMER_OUT_MS), and keeps them.
    """
    dropped = (keys.PREPARED,) if keys.TIMER_OUT_MS in properties else _WISHES
    return {key: value for key, value in properties.items() if key not in dropped}


def attempt_after(reconsume_times: int) -> int:
    """A producer may say any number, and a record holds none beyond Java's largest."""
    return min(reconsume_times + 1, _MOST_ATTEMPTS)


def wants_to_wait(properties: str) -> bool:
    """Whether the sender wants to know that its message is safe."""
    mentions = properties.count(_WAIT)
    if not mentions or (mentions == 1 and _WAIT_TRUE in properties):
        return True
    return decode_properties(properties).get(keys.WAIT, "true").lower() == "true"
