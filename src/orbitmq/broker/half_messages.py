"""Messages of open transactions: stored where nobody consumes, until their producer decides.

    half topic   the messages, with their real topic in their properties
    op topic     which of them are decided: half-queue offsets as text, `12,13,27,`

What is undecided is kept in memory and rebuilt at start from the two queues. So a decision is a look-up, and asking producers
again costs nothing but the asking. Apache moves a copy of an undecided message to the end of its queue at every check; here it
stays where it is, which is why one decision can never count twice.

Java: TransactionalMessageServiceImpl, TransactionalMessageBridge
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter as Tally
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.broker import names, statistics
from orbitmq.broker.histograms import FINISH_LATENCY
from orbitmq.broker.own_queues import read_batch
from orbitmq.broker.sending import asks_for_delay
from orbitmq.errors import MessageError, RequestFailed, StorageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import (
    LONG_DIGITS,
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    property_finder,
    property_number,
)
from orbitmq.message.record import decode_raw, decode_record, encode_stored
from orbitmq.message.sysflags import TRANSACTION_COMMIT, TRANSACTION_MASK
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.transactions import CheckTransactionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from orbitmq.broker.clients import Client, Clients
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.message.message import StoredMessage
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.appended import Appended
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"  # under which the progress in both queues is saved, as in Java
_QUEUE: Final = 0
HALF_TOPIC_BYTES: Final = names.HALF_TOPIC.encode()
_find_group: Final = property_finder(keys.PRODUCER_GROUP)
_find_topic: Final = property_finder(keys.REAL_TOPIC)
_find_queue: Final = property_finder(keys.REAL_QUEUE_ID)
_DECIDED_TAG: Final = "d"
_READ_AT_ONCE: Final = 32
_CHECKS_PER_TURN: Final = 20  # then the event loop serves others
_PRODUCER_IS_BEHIND_SECONDS: Final = 0.02
_LONGEST_ROUND_SECONDS: Final = 60.0  # Java's too; the next round goes on
_AFTER_FAILURE_SECONDS: Final = 1.0
_RECORD_ROOM_BYTES: Final = 16 << 10  # more than the decisions of a turn usually take
_MOST_TOGETHER: Final = 1000  # decisions in one op message
_MOST_BYTES_OF_ONE: Final = 20  # 19 digits and a comma


class HalfMessage(msgspec.Struct, gc=False):
    """What must be known of an undecided message without reading it. There may be many: strings are shared."""

    topic: str  # where it will go
    commit_log_offset: int
    size: int
    stored_at_ms: int
    checks: int = 0
    group: str | None = None  # of producers; known once the message was looked at
    immune_ms: int | None = None  # how long it wants to be left alone; None: as long as the broker says


class HalfMessages:
    def __init__(
        self,
        store: Store,
        topics: Topics,
        offsets: ConsumerOffsets,
        clients: Clients,
        sending: Sending,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
        store_host: bytes,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._sending = sending
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self._store_host = store_host
        self.undecided: dict[int, HalfMessage] = {}  # by offset in the half queue, oldest first
        self._to_record: list[int] = []
        self._recording: asyncio.Handle | None = None  # what will record them
        self._failure: StorageError | None = None  # of the last record
        # Op messages from an offset on, and the highest half-queue offset in them or before: both ascend.
        self._recorded: deque[tuple[int, int]] = deque()
        self._next_producer = 0
        self.may_see: Callable[[Client, str], bool] = lambda producer, topic: True  # a message of that topic
        self._rebuild()

    def __len__(self) -> int:
        return len(self.undecided)

    def by_topic(self) -> Tally[str]:
        """How many are undecided."""
        return Tally(half.topic for half in self.undecided.values())

    def settle_at(self, store_host: bytes) -> None:
        self._store_host = store_host

    # ---- a transaction begins

    def taken(self, appended: Appended, topic: str) -> None:
        """A half message for that topic was stored."""
        at = appended.commit_log_offset
        self.undecided[appended.queue_offset] = HalfMessage(
            sys.intern(topic), at, appended.end - at, appended.stored_at_ms
        )

    # ---- and is decided

    def topic_of(self, queue_offset: int) -> str | None:
        """Where an undecided message will go."""
        half = self.undecided.get(queue_offset)
        return None if half is None else half.topic

    def commit(self, queue_offset: int, commit_log_offset: int, group: str) -> None:
        """Let consumers see the message. RequestFailed when there is no such transaction of this group."""
        half = self.undecided.get(queue_offset)
        born_at_ms = self._send_on(half, queue_offset, commit_log_offset, group)
        if born_at_ms is None:
            message = self._find(queue_offset, commit_log_offset, group)
            if half is None:
                return  # decided before; once is enough
            self._publish(message)
            born_at_ms = message.born_at_ms
        assert half is not None, "only what is undecided is sent on"
        self._decide(queue_offset)
        self._count_commits(half.topic, (self._clock.now_ms() - born_at_ms) // 1000, 1)

    def committed_together(self, queue_offsets: list[int], finished: Sequence[tuple[str, int, int, int]]) -> None:
        """Compiled loops sent these on and took them out of `undecided`.

        `finished`: topic, seconds since the messages were born, how many, the bytes of their records.
        """
        for topic, waited_seconds, messages, size in finished:
            self._sending.count(topic, messages, size)
            self._count_commits(topic, waited_seconds, messages)
        self._to_be_recorded(queue_offsets)

    def _count_commits(self, topic: str, waited_seconds: int, messages: int) -> None:
        self._stats.counter(statistics.COMMIT_NUMS, topic).add(messages)
        self._stats.histogram(FINISH_LATENCY).record(waited_seconds, topic, times=messages)

    def roll_back(self, queue_offset: int, commit_log_offset: int, group: str) -> None:
        self._find(queue_offset, commit_log_offset, group)
        half = self.undecided.get(queue_offset)
        if half is not None:
            self._decide(queue_offset)
            self._stats.counter(statistics.ROLLBACK_NUMS, half.topic).add(1)

    def _send_on(self, half: HalfMessage | None, queue_offset: int, commit_log_offset: int, group: str) -> int | None:
        """Publish it the quick way: when it was born, None if there is more to look at."""
        if half is None or half.commit_log_offset != commit_log_offset:
            return None
        record = self._store.log.read(commit_log_offset, half.size)
        if record is None:
            return None
        sent = self._store.sending_on.commit_half(
            record, HALF_TOPIC_BYTES, group.encode("utf-8", "replace"), queue_offset
        )
        if sent is None:
            return None
        self._sending.count(sent.topic, 1, sent.size)
        return sent.born_at_ms

    def _find(self, queue_offset: int, commit_log_offset: int, group: str) -> RawRecord:
        half = self.undecided.get(queue_offset)
        if half is None:
            record = self._store.message_at(commit_log_offset)  # decided before
        elif half.commit_log_offset == commit_log_offset:
            record = self._store.log.read(commit_log_offset, half.size)
        else:
            record = None  # what stands there may be anything, and would be published
        message = decode_raw(record) if record is not None else None
        if message is None or message.topic != names.HALF_TOPIC:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR, f"Find prepared transaction message failed at {commit_log_offset}"
            )
        if (_find_group(message.properties) or b"").decode("utf-8", "replace") != group:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if message.queue_offset != queue_offset:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return message

    def _publish(self, half: RawRecord) -> None:
        """The message as its consumers get it. Its stored properties still tell of the half message, as Java's do."""
        properties = half.properties
        topic = (_find_topic(properties) or b"").decode("utf-8", "replace")
        queue_id = property_number(_find_queue(properties), 0)
        text = properties.decode("utf-8", "replace")
        if asks_for_delay(text):
            parked = self._sending.parked(topic, queue_id, text, decode_properties(text))
            if parked is not None:
                topic, queue_id, text, _ = parked
                properties = text.encode("utf-8", "replace")
        appended = self._store.append(
            topic,
            queue_id,
            half.body,
            properties,
            half.born_at_ms,
            half.born_host,
            half.flag,
            half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
            half.reconsume_times,
            half.commit_log_offset,
        )
        self._sending.count(topic, 1, appended.end - appended.commit_log_offset)

    def _decide(self, queue_offset: int) -> None:
        del self.undecided[queue_offset]
        self._to_be_recorded([queue_offset])

    def _to_be_recorded(self, queue_offsets: list[int]) -> None:
        if self._recording is None:
            self._recording = asyncio.get_running_loop().call_soon(self.record_decisions)
        self._to_record += queue_offsets

    def record_decisions(self) -> None:
        """One op message for all decisions of this turn of the loop; several after a disk was full for long, or where messages must be short."""
        self._do_not_record_later()
        most = max(1, min(_MOST_TOGETHER, self._store.log.max_body_bytes // _MOST_BYTES_OF_ONE))
        tag = encode_properties({keys.TAGS: _DECIDED_TAG})
        while self._to_record:
            decided = self._to_record[:most]
            body = "".join(f"{offset}," for offset in decided).encode()
            now_ms = self._clock.now_ms()
            try:
                appended = self._store.append(names.HALF_OP_TOPIC, _QUEUE, body, tag, now_ms, self._store_host)
            except StorageError as error:
                # Kept, and tried again soon: lost with a crash, what was committed is undecided again and may be published twice.
                logger.error("cannot record %d decided transactions yet: %s", len(self._to_record), error)
                self._failure = error
                loop = asyncio.get_running_loop()
                self._recording = loop.call_later(_AFTER_FAILURE_SECONDS, self.record_decisions)
                return
            del self._to_record[: len(decided)]
            self._failure = None
            self._note_recorded(appended.queue_offset, max(decided))

    def _note_recorded(self, op_offset: int, highest: int) -> None:
        if not self._recorded or highest > self._recorded[-1][1]:
            self._recorded.append((op_offset, highest))

    def require_recorded(self, queue_offset: int) -> None:
        """StorageError if that decision could not be recorded yet: a crash would forget it, so nobody is told that it counts."""
        if self._failure is not None and queue_offset in self._to_record:
            raise self._failure

    @property
    def is_sure_to_record(self) -> bool:
        """Whether the decisions of this turn will be recorded at its end: nothing fails, and there are pages for them."""
        store = self._store
        has_room = store.log.end + _RECORD_ROOM_BYTES <= store.log.prepared_to
        return has_room and self._failure is None and not store.health.refuses_writes

    def _do_not_record_later(self) -> None:
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None

    def stop(self) -> None:
        """The store is closed after this, so what cannot be recorded now is not."""
        self.record_decisions()
        self._do_not_record_later()
        self.save_progress()

    # ---- or is not, and the producer is asked

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._configuration.settings.transaction_check_interval / 1000)
            self.record_decisions()
            await self.check_round()

    async def check_round(self) -> None:
        """Ask about every message that is undecided for too long; give up on those asked about too often.

        Gives way to other work all the time, and waits for producers that do not keep up: there may be 100,000 of them. Nobody else
        waits for those: one may never read again.
        """
        behind: defaultdict[tuple[str | None, str], deque[int]] = defaultdict(deque)  # by group and topic
        for number, (queue_offset, half) in enumerate(list(self.undecided.items()), 1):
            if (half.group, half.topic) in behind or not self._is_done_with(queue_offset):
                behind[half.group, half.topic].append(queue_offset)
            if number % _CHECKS_PER_TURN == 0:
                await asyncio.sleep(0)
        deadline = asyncio.get_running_loop().time() + _LONGEST_ROUND_SECONDS
        waiting = list(behind.values())
        while waiting and asyncio.get_running_loop().time() <= deadline:
            await asyncio.sleep(_PRODUCER_IS_BEHIND_SECONDS)
            for queue_offsets in waiting:
                while queue_offsets and self._is_done_with(queue_offsets[0]):
                    queue_offsets.popleft()
                    if len(queue_offsets) % _CHECKS_PER_TURN == 0:
                        await asyncio.sleep(0)
            waiting = [queue_offsets for queue_offsets in waiting if queue_offsets]
        self.save_progress()

    def _is_done_with(self, queue_offset: int) -> bool:
        """For this round."""
        half = self.undecided.get(queue_offset)
        return half is None or self._check(queue_offset, half)

    def _check(self, queue_offset: int, half: HalfMessage) -> bool:
        """False: its producer has enough to read for now."""
        if half.commit_log_offset < self._store.log.start:
            del self.undecided[queue_offset]  # its file has expired, whether or not there is somebody to ask
            return True
        message = self._look_at(queue_offset, half) if half.group is None else None
        if half.group is None:
            return True
        settings = self._configuration.settings
        patience_ms = settings.transaction_time_out if half.immune_ms is None else half.immune_ms
        if 0 <= self._clock.now_ms() - half.stored_at_ms <= patience_ms:
            return True
        gives_up = half.checks >= settings.transaction_check_max
        if not gives_up and not self._clients.producers(half.group):
            return True  # nobody to ask, so nothing to look up
        message = message or self._look_at(queue_offset, half)
        if message is None:
            return True
        if gives_up:
            self._discard(queue_offset, message)
            return True
        producer = self._producer_of(half.group, half.topic)
        if producer is not None:
            if producer.connection.is_behind:
                return False
            half.checks += 1
            message.raw_properties = _with_number_of_check(message.raw_properties, half.checks)
            self._ask(producer, message)
        return True

    def _look_at(self, queue_offset: int, half: HalfMessage) -> StoredMessage | None:
        """None when it cannot be read: not yet, or never; then it is undecided no more."""
        record = self._store.record_at(half.commit_log_offset)
        if record is None:
            return None  # in the write pool still
        try:
            message = decode_record(record)
        except MessageError as error:
            logger.error("gave up the half message at %d, which cannot be read: %s", half.commit_log_offset, error)
            del self.undecided[queue_offset]
            return None
        half.group = sys.intern(message.properties.get(keys.PRODUCER_GROUP, ""))
        immune_seconds = property_number(message.properties.get(keys.CHECK_IMMUNITY_SECONDS), -1)
        half.immune_ms = immune_seconds * 1000 if immune_seconds >= 0 else None
        return message

    def _discard(self, queue_offset: int, message: StoredMessage) -> None:
        """Nobody would decide: keep it where operators find it. Java: DefaultTransactionalMessageCheckListener"""
        self._topics.create_internal(names.DISCARDED_HALF_TOPIC, 1)
        try:
            self._store.append(
                names.DISCARDED_HALF_TOPIC,
                _QUEUE,
                message.body,
                message.raw_properties,
                message.born_at_ms,
                message.born_host,
                message.flag,
                message.sys_flag,
                message.reconsume_times,
            )
        except (StorageError, MessageError) as error:
            logger.error("cannot put aside an undecided transaction yet: %s", error)
            return
        logger.warning(
            "gave up on a transaction of %s: nobody decided it in %d checks",
            message.properties.get(keys.PRODUCER_GROUP),
            self._configuration.settings.transaction_check_max,
        )
        self._decide(queue_offset)

    def take_up_again(self, given_up: RawRecord, topic: str) -> Appended:
        """A message that was put aside becomes an open transaction for that topic again, about which nobody was asked yet."""
        properties = {**decode_properties(given_up.properties), keys.TRANSACTION_CHECK_TIMES: "0"}
        appended = self._store.append(
            names.HALF_TOPIC,
            _QUEUE,
            given_up.body,
            encode_properties(properties),
            given_up.born_at_ms,
            given_up.born_host,
            given_up.flag,
            given_up.sys_flag,
            given_up.reconsume_times,
        )
        self.taken(appended, topic)
        return appended

    def _producer_of(self, group: str, topic: str) -> Client | None:
        """One after the other. Anyone can say to be of a group, and a question has the message in it."""
        producers = self._clients.producers(group)
        self._next_producer += 1
        found = None
        for number in range(len(producers)):
            producer = producers[(self._next_producer + number) % len(producers)]
            if self.may_see(producer, topic):
                found = producer
                if not producer.connection.is_behind:
                    break
        return found

    def _ask(self, producer: Client, message: StoredMessage) -> None:
        unique_key = message.properties.get(keys.UNIQUE_KEY)
        header = CheckTransactionState(
            topic=names.HALF_TOPIC,
            tran_state_table_offset=message.queue_offset,
            commit_log_offset=message.commit_log_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=message.offset_id,
            bname=self._configuration.settings.broker_name,
        )
        message.topic = message.properties.get(keys.REAL_TOPIC, message.topic)
        message.queue_id = property_number(message.properties.get(keys.REAL_QUEUE_ID), 0)
        producer.connection.notify(new_request(RequestCode.CHECK_TRANSACTION_STATE, header, encode_stored(message)))

    # ---- by a slave in its master's place, and after its return

    def look_again(self) -> None:
        """A slave's queues have grown since it was started."""
        self.undecided.clear()
        self._rebuild()

    async def begin_elsewhere(self, begin: Callable[[RawRecord], Awaitable[bool]]) -> None:
        """What is undecided becomes a transaction of another broker, which asks its producer."""
        for queue_offset, half in list(self.undecided.items()):
            record = self._store.log.read(half.commit_log_offset, half.size)
            try:
                message = decode_raw(record) if record is not None else None
            except MessageError as error:
                logger.error("gave up a transaction at %d that cannot be read: %s", half.commit_log_offset, error)
                message = None
            if message is not None and not await begin(message):
                return
            del self.undecided[queue_offset]
            self.save_progress()

    def forget_before(self) -> None:
        """The saved progress was taken back from a slave: what lies before it is decided, or another broker's."""
        offset = self._offsets.get(GROUP, names.HALF_TOPIC, _QUEUE) or 0
        for queue_offset in [known for known in self.undecided if known < offset]:
            del self.undecided[queue_offset]

    # ---- across restarts

    def save_progress(self) -> None:
        """How far everything is decided. The op queue is left behind up to where it speaks of what is behind the first open one."""
        first_open = next(iter(self.undecided), self._store.queue_range(names.HALF_TOPIC, _QUEUE).max_offset)
        while self._recorded and self._recorded[0][1] < first_open:
            self._recorded.popleft()
        op_end = self._store.queue_range(names.HALF_OP_TOPIC, _QUEUE).max_offset
        self._save_offset(names.HALF_TOPIC, first_open)
        self._save_offset(names.HALF_OP_TOPIC, self._recorded[0][0] if self._recorded else op_end)

    def _save_offset(self, topic: str, offset: int) -> None:
        """Nothing where nothing has happened: tools would list a group that never was."""
        known = self._offsets.get(GROUP, topic, _QUEUE)
        if offset != (self._store.queue_range(topic, _QUEUE).min_offset if known is None else known):
            self._offsets.commit(GROUP, topic, _QUEUE, offset)

    def _rebuild(self) -> None:
        self._recorded.clear()
        decided: set[int] = set()
        for message in self._messages(names.HALF_OP_TOPIC):
            offsets = [property_number(offset, -1, LONG_DIGITS) for offset in message.body.split(b",")]
            self._note_recorded(message.queue_offset, max(offsets))
            decided.update(offsets)
        for message in self._messages(names.HALF_TOPIC):
            if message.queue_offset not in decided:
                self.undecided[message.queue_offset] = HalfMessage(
                    sys.intern(message.properties.get(keys.REAL_TOPIC, "")),
                    message.commit_log_offset,
                    message.size,
                    message.stored_at_ms,
                    property_number(message.properties.get(keys.TRANSACTION_CHECK_TIMES), 0),
                )
        if self.undecided:
            logger.info("%d transactions are undecided", len(self.undecided))

    def _messages(self, topic: str) -> Iterator[StoredMessage]:
        """From the saved progress to the end, one at a time: there may be many."""
        low, high = self._store.queue_range(topic, _QUEUE)
        offset = max(low, min(self._offsets.get(GROUP, topic, _QUEUE) or 0, high))
        while offset < high:
            messages, result = read_batch(self._store, topic, _QUEUE, offset, _READ_AT_ONCE)
            yield from messages
            if result.next_offset <= offset:
                break
            offset = result.next_offset


def _with_number_of_check(properties: bytes, number: int) -> bytes:
    """As Apache's broker counts in the message itself: listeners decide by it. Of a key that is there twice, the last counts."""
    end = b"" if properties.endswith(b"\x02") else b"\x02"
    counted = b"%b%b%b\x01%d\x02" % (properties, end, keys.TRANSACTION_CHECK_TIMES.encode(), number)
    return counted if len(counted) <= MAX_PROPERTIES_BYTES else properties
