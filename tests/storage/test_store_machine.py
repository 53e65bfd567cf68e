"""Any interleaving of append, dispatch, flush, deletion, stop, kill, power cut and start gives the model's answer.

The model is a list of messages in the order of the log. Stopping and killing keep all of it; a power cut keeps a beginning of
it, at least what was flushed. A deleted topic has no messages, and the next one is its first.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_record
from orbitmq.storage.config import FlushMode
from orbitmq.storage.lock import LastExit
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, messages, open_store

if TYPE_CHECKING:
    from orbitmq.storage.store import Store

TOPICS = ("A", "B")
QUEUES = (0, 1)


class Written:
    """A message of the model."""

    __slots__ = ("body", "key", "queue", "queue_offset", "stored_at_ms")

    def __init__(self, queue: tuple[str, int], queue_offset: int, body: bytes, key: str, stored_at_ms: int) -> None:
        self.queue = queue
        self.queue_offset = queue_offset
        self.body = body
        self.key = key
        self.stored_at_ms = stored_at_ms


class StoreMachine(RuleBasedStateMachine):
    flush_mode = FlushMode.ASYNC

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="orbitmq-machine-"))
        self.disk = FaultyDisk(self.directory)
        self.clock = ManualClock()
        self.model: list[Written] = []
        self.flushed = 0
        self.numbers = 0
        self.deleted: set[bytes] = set()  # bodies
        self.store: Store = self.open()

    def open(self) -> Store:
        return open_store(
            self.directory, disk=self.disk, clock=self.clock, flush_mode=self.flush_mode, segment_bytes=16_384,
            queue_file_bytes=400, index_slots=16, index_entries=20,
        )  # fmt: skip

    def teardown(self) -> None:
        self.store.abandon()
        shutil.rmtree(self.directory)

    def next_offset(self, queue: tuple[str, int]) -> int:
        return sum(written.queue == queue for written in self.model)

    def written(self, queue: tuple[str, int], body: bytes, key: str) -> None:
        self.model.append(Written(queue, self.next_offset(queue), body, key, self.clock.now_ms()))

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.sampled_from(QUEUES),
        size=st.integers(0, 3000),
        key=st.integers(0, 4),
    )
    def append(self, topic: str, queue_id: int, size: int, key: int) -> None:
        self.numbers += 1
        body = b"%d:" % self.numbers + bytes(size)
        properties = encode_properties({"KEYS": f"k{key}", "UNIQ_KEY": f"U{self.numbers}"})
        appended = self.store.append(topic, queue_id, body, properties, BORN_AT_MS, BORN_HOST)
        assert appended.queue_offset == self.next_offset((topic, queue_id))
        self.written((topic, queue_id), body, f"k{key}")

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5), size=st.integers(0, 1000))
    def append_batch(self, topic: str, count: int, size: int) -> None:
        bodies = [b"%d:" % (self.numbers + number + 1) + bytes(size) for number in range(count)]
        self.numbers += count
        members = [BatchMember(body, encode_properties({"KEYS": "batch"})) for body in bodies]
        appended = self.store.append_batch(topic, 0, members, b"CLUSTER\x01c\x02", BORN_AT_MS, BORN_HOST)
        assert appended.queue_offset == self.next_offset((topic, 0))
        for body in bodies:
            self.written((topic, 0), body, "batch")

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.deleted |= {written.body for written in self.model if written.queue[0] == topic}
        kept = [written for written in self.model if written.queue[0] != topic]
        if len(kept) < len(self.model):
            self.flushed = len(kept)  # what is noted of the log is durable
        self.model = kept

    @rule(ms=st.integers(1, 5000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule()
    def dispatch(self) -> None:
        self.store.dispatch()

    @rule()
    def write_queues(self) -> None:
        self.store.queues.write_out()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.flushed = len(self.model)

    @rule()
    def flush_log_only(self) -> None:
        self.store._log_flusher.flush()
        self.flushed = len(self.model)

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.store = self.open()
        assert self.store.last_exit is LastExit.CLEAN
        self.flushed = len(self.model)

    @rule()
    def kill_and_start(self) -> None:
        self.store.abandon()
        self.store = self.open()
        assert self.store.last_exit is LastExit.KILLED
        self.flushed = len(self.model)

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 32)))
    def cut_power_and_start(self, seed: int | None) -> None:
        self.store.abandon()
        self.disk.crash(None if seed is None else Random(seed))
        self.store = self.open()
        assert self.store.last_exit is LastExit.CRASHED
        self.store.flush()
        kept = sum(found.max_offset for found in self.store.queue_ranges().values())
        assert kept >= self.flushed, "flushed and lost"
        self.model = self.model[:kept]
        self.flushed = kept

    @invariant()
    def queues_hold_what_was_written(self) -> None:
        if self.flush_mode is FlushMode.SYNC:
            visible = self.model[: self.flushed]
            self.store.dispatch()
        else:
            visible = self.model
        for queue in [(topic, queue_id) for topic in TOPICS for queue_id in QUEUES]:
            wanted = [written for written in visible if written.queue == queue]
            found = messages(self.store, *queue)
            assert [message.body for message in found] == [written.body for written in wanted]
            assert [message.queue_offset for message in found] == list(range(len(wanted)))
            for message, written in zip(found, wanted, strict=True):
                assert message.stored_at_ms == written.stored_at_ms

    @rule(pick=st.integers(0, 1 << 30))
    def find(self, pick: int) -> None:
        # Not a precondition: which rules there are to choose from depends on nothing that a power cut leaves.
        if not self.model or self.flush_mode is FlushMode.SYNC:
            return
        self.store.dispatch()
        written = self.model[pick % len(self.model)]
        topic, queue_id = written.queue
        wanted = [other.body for other in self.model if other.key == written.key and other.queue[0] == topic]
        found = [decode_record(record) for record in self.store.find_by_key(topic, written.key, limit=10_000).records]
        found = [
            message for message in found if message.body not in self.deleted
        ]  # keys lead to these until they expire
        assert [message.body for message in found if message.keys == [written.key]] == wanted
        times = [other.stored_at_ms for other in self.model if other.queue == written.queue]
        lower = self.store.offset_by_time(topic, queue_id, written.stored_at_ms)
        assert lower == sum(time < written.stored_at_ms for time in times)


class SynchronousStoreMachine(StoreMachine):
    flush_mode = FlushMode.SYNC


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSynchronousStoreMachine = SynchronousStoreMachine.TestCase
TestSynchronousStoreMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
