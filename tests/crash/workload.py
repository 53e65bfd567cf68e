"""The writer: appends messages and saves a table, telling the ledger what it tries and what the store acknowledged."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember
from orbitmq.message.hosts import pack_host
from orbitmq.storage.commit_log import LARGE_BATCH_BYTES
from orbitmq.storage.config import FlushMode, StorageConfig
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.retention import Retention
from orbitmq.storage.store import Store
from orbitmq.storage.tables import OFFSETS, OffsetTable

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from orbitmq.storage.files import Disk
    from tests.crash.ledger import Ledger

HOST = pack_host("127.0.0.1", 10911)
TOPICS = ("Orders", "Payments", "%RETRY%group")
QUEUES = 3
SAVED_KEY = "Orders@group"
SEGMENT_BYTES = 3 * LARGE_BATCH_BYTES


class LeapingClock:
    """Every look at it finds it later, up to half a second; it goes on where a killed process left it.

    Recovery trusts the checkpoint for all but the last three seconds. In a run of milliseconds it would never have to.
    """

    def __init__(self, path: Path, random: Random) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._now_ms = int.from_bytes(os.pread(self._descriptor, 8, 0), "big") or 1_700_000_000_000
        self._random = random

    def now_ms(self) -> int:
        self._now_ms += self._random.choice((0, 0, 1, 10, 500))
        os.pwrite(self._descriptor, self._now_ms.to_bytes(8, "big"), 0)
        return self._now_ms


def clock_of(directory: Path) -> Path:
    """The time of a store that leaps; outside of its directory, because power cuts stop no clocks."""
    return directory.with_name(directory.name + ".clock")


def config(directory: Path, flush_mode: FlushMode = FlushMode.ASYNC) -> StorageConfig:
    """Files so small that every few appends roll one, yet a large batch has room."""
    plain = StorageConfig(
        directory=directory, segment_bytes=SEGMENT_BYTES, queue_file_bytes=400, index_slots=997, index_entries=60
    )
    return replace(
        plain, flush_mode=flush_mode, flush_every_ms=2, queue_flush_every_ms=3, queue_flush_thorough_every_ms=9
    )


class Writer:
    def __init__(self, store: Store, ledger: Ledger, random: Random, run: str, *, acks_before_writing: bool) -> None:
        self._store = store
        self._ledger = ledger
        self._random = random
        self._run = run
        self._acks_before_writing = acks_before_writing
        self._count = 0
        self._saves = JsonFile(store.disk, store.config.config_path / OFFSETS, OffsetTable)
        self._table = self._saves.load()

    def step(self) -> None:
        choice = self._random.random()
        if choice < 0.70:
            self.append()
        elif choice < 0.82:
            self.append_batch()
        elif choice < 0.90:
            self._store.dispatch()
        elif choice < 0.95:
            self._store.flush()
            self._ledger.note(f"durable {self._store.flushed_offset}")
        elif choice < 0.96:
            self.expire()
        else:
            self.save()

    def append(self) -> None:
        topic, queue_id = self._queue()
        name = self._next_id()
        self._ledger.note(f"try {name} {topic} {queue_id}")
        if self._acks_before_writing:
            self._ledger.note(f"ack {name} {topic} {queue_id} -1 -1 -1")
        done = self._store.append(topic, queue_id, self._body(name), self._properties(name), 1, HOST)
        if not self._acks_before_writing:
            place = f"{done.queue_offset} {done.commit_log_offset} {done.end}"
            self._ledger.note(f"ack {name} {topic} {queue_id} {place}")

    def append_batch(self) -> None:
        topic, queue_id = self._queue()
        is_large = self._random.random() < 0.3  # enough to be written together
        count = self._random.randrange(10, 15) if is_large else self._random.randrange(1, 6)
        names = [self._next_id() for _ in range(count)]
        self._ledger.note(f"batch {' '.join(names)}", *(f"try {name} {topic} {queue_id}" for name in names))
        padding = b"." * (LARGE_BATCH_BYTES // count if is_large else 0)
        members = [BatchMember(self._body(name) + padding, self._properties(name)) for name in names]
        done = self._store.append_batch(topic, queue_id, members, b"", 1, HOST)
        places = enumerate(zip(names, done.commit_log_offsets, strict=True), done.queue_offset)
        self._ledger.note(*(f"ack {name} {topic} {queue_id} {number} {at} {done.end}" for number, (name, at) in places))

    def save(self) -> None:
        number = self._table.offset_table.setdefault(SAVED_KEY, {0: 0})[0] + 1
        self._table.offset_table[SAVED_KEY][0] = number
        self._ledger.note(f"trysave {number}")
        self._saves.save(self._table)
        self._ledger.note(f"acksave {number}")

    def expire(self) -> None:
        """The oldest file goes, and the indexes follow."""
        store = self._store
        assert store.keys is not None
        always_due = replace(store.config, keep_hours=1, delete_at_hours=tuple(range(24)), delete_at_most=1)
        in_days = ManualClock(2**42)
        Retention(store.disk, always_due, in_days, store.log.files, [store.queues, store.keys], lambda _: None).clean()

    def _queue(self) -> tuple[str, int]:
        return self._random.choice(TOPICS), self._random.randrange(QUEUES)

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._run}-{self._count}"

    def _body(self, name: str) -> bytes:
        return name.encode() + b"." * self._random.choice((0, 1, 50, 200, 1000))

    def _properties(self, name: str) -> bytes:
        shared = f"KEYS\x01common k{self._random.randrange(5)}\x02" if self._random.random() < 0.2 else ""
        return f"UNIQ_KEY\x01{name}\x02{shared}".encode()


def write(
    directory: Path,
    ledger: Ledger,
    random: Random,
    run: str,
    *,
    with_threads: bool,
    acks_before_writing: bool = False,
    disk: Disk | None = None,
    abandon: bool = False,
) -> None:
    """Open the store, work for a while, and stop properly, unless killed before. With `abandon`, stop as a kill would."""
    flush_mode = random.choice((FlushMode.ASYNC, FlushMode.SYNC))
    # A file made ahead is made by a thread, and a power cut must find nobody at work.
    settings = replace(config(directory, flush_mode), prepare_next_segment=with_threads)
    store = Store(settings, HOST, clock=LeapingClock(clock_of(directory), random), disk=disk)
    if with_threads:
        store.start()
    writer = Writer(store, ledger, random, run, acks_before_writing=acks_before_writing)
    for _ in range(random.randrange(10, 80)):
        writer.step()
    if abandon:
        store.abandon()
        return
    store.close()
    ledger.note(f"durable {store.log.end}")
