"""What must hold of a store after any crash, against what the ledger says was promised."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.message.record import decode_record
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.json_file import read_table_or_backup
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.store import Store
from orbitmq.storage.tables import OFFSETS, OffsetTable
from orbitmq.storage.verification import verify
from tests.crash.workload import HOST, SAVED_KEY, LeapingClock, clock_of, config

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.files import Disk
    from tests.crash.ledger import Promised


class Checked(NamedTuple):
    broken: list[str]  # promises; empty is good
    lost: list[str]  # acknowledged but not durable, as a power cut may take
    torn: list[list[str]]  # batches of which it took a part


class AfterReboot(LocalDisk):
    """The disk of a machine that started again just now: whoever wrote the abort file, it was not in this page cache.

    A writer that dies in recovery has not put its own name there yet, and the one before it may have run on the real disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic_ns()

    def page_cache_id(self, path: Path) -> str:
        return f"{super().page_cache_id(path)} {self._started}"


def check_after_crash(directory: Path, promised: Promised, *, close: bool, power_cut: bool = False) -> Checked:
    """Open the store, which repairs it, and compare. After a power cut only what was flushed need be there.

    With `close` the store is stopped properly afterwards and every byte of the directory verified; without, it is left as
    another crash right after recovery would leave it.
    """
    disk = AfterReboot() if power_cut else LocalDisk()
    seen_without_a_broker = None if power_cut else _as_a_reader_sees_it(directory)
    store = Store(config(directory), HOST, clock=LeapingClock(clock_of(directory), Random(0)), disk=disk)
    messages = _all_messages(store)
    broken, lost = _promises(promised, messages, store.log.start, power_cut=power_cut)
    broken += _keys(store, messages) + _table(directory, promised, disk)
    served = {key: [name_of(message) for message in found] for key, found in messages.items() if found}
    torn = _torn(promised, {name for names in served.values() for name in names})
    if not power_cut:
        broken += [f"only a part of the batch {' '.join(names)} is there" for names in torn]
    if seen_without_a_broker not in (None, served):
        broken.append(f"a reader saw {seen_without_a_broker} where the store then served {served}")
    if close:
        store.close()
        with StoreReader(directory) as reader:
            found = verify(reader, disk)
        broken += [f"verify: {finding.path} byte {finding.byte}: {finding.problem}" for finding in found.findings]
    else:
        store.abandon()
    return Checked(broken, lost, torn)


def _as_a_reader_sees_it(directory: Path) -> dict[tuple[str, int], list[str]]:
    """Without a broker, and before one has mended anything: it must show what the broker will."""
    if not (directory / "commitlog").exists():
        return {}
    with StoreReader(directory) as reader:
        keys = [(queue.topic, queue.queue_id) for queue in reader.queues()]
        names = {key: [name_of(message) for message in reader.messages(*key)] for key in keys}
    return {key: found for key, found in names.items() if found}


def name_of(message: StoredMessage) -> str:
    return message.body.rstrip(b".").decode()


def _all_messages(store: Store) -> dict[tuple[str, int], list[StoredMessage]]:
    """Every queue from its first message to its last, as a consumer would get them."""
    queues = {}
    for (topic, queue_id), queue in sorted(store.queue_ranges().items()):
        messages: list[StoredMessage] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.read(topic, queue_id, offset)
            for buffer in result.buffers:
                at = 0
                while at < len(buffer):
                    messages.append(decode_record(buffer, at))
                    at += messages[-1].size
            assert result.next_offset > offset, f"reading {topic}/{queue_id} at {offset} goes nowhere"
            offset = result.next_offset
        queues[topic, queue_id] = messages
    return queues


def _promises(
    promised: Promised, queues: dict[tuple[str, int], list[StoredMessage]], log_start: int, *, power_cut: bool
) -> tuple[list[str], list[str]]:
    broken: list[str] = []
    lost: list[str] = []
    seen: dict[str, StoredMessage] = {}
    for (topic, queue_id), messages in queues.items():
        offsets = [message.queue_offset for message in messages]
        first = offsets[0] if offsets else 0
        if offsets != list(range(first, first + len(offsets))) or (first and not log_start):
            broken.append(f"{topic}/{queue_id} is not dense: {offsets}")
        for message in messages:
            name = name_of(message)
            if (message.topic, message.queue_id) != (topic, queue_id):
                broken.append(f"{name} of {message.topic}/{message.queue_id} is in queue {topic}/{queue_id}")
            if name in seen:
                broken.append(f"{name} is there twice: at {seen[name].commit_log_offset}, {message.commit_log_offset}")
            if name not in promised.tried:
                broken.append(f"{name} was never sent")
            seen[name] = message
    for name, promise in promised.acked.items():
        found = seen.get(name)
        if found is None and 0 <= promise.log_offset < log_start:
            continue  # expired
        if found is None and power_cut and promise.end > promised.durable:
            lost.append(name)
        elif found is None:
            broken.append(f"{name} was acknowledged and is lost")
        elif promise.queue_offset >= 0 and (found.queue_offset, found.commit_log_offset) != promise[2:4]:
            broken.append(f"{name} was promised at {promise}, is at {found.queue_offset}, {found.commit_log_offset}")
    return broken, lost


def _torn(promised: Promised, served: set[str]) -> list[list[str]]:
    return [names for names in promised.batches if not served.isdisjoint(names) and not served.issuperset(names)]


def _keys(store: Store, queues: dict[tuple[str, int], list[StoredMessage]]) -> list[str]:
    """Each message is in the key index exactly once under its unique key, and under each of its other keys."""
    assert store.keys is not None
    broken: list[str] = []
    expected: dict[tuple[str, str], list[int]] = {}
    for messages in queues.values():
        for message in messages:
            for key in (message.properties["UNIQ_KEY"], *message.keys):
                expected.setdefault((message.topic, key), []).append(message.commit_log_offset)
    own = {offset for offsets in expected.values() for offset in offsets}
    for (topic, key), offsets in expected.items():
        found = store.keys.find(topic, key, 1_000_000, 0, 2**62).offsets
        found = [offset for offset in found if offset >= store.log.start]
        matching = [offset for offset in found if offset in set(offsets)]
        if sorted(matching) != sorted(offsets):
            broken.append(f"key {topic}#{key}: index says {sorted(matching)}, the log {sorted(offsets)}")
        if not own.issuperset(found):
            broken.append(f"key {topic}#{key} leads to {sorted(set(found) - own)}, where no message is")
    return broken


def _table(directory: Path, promised: Promised, disk: Disk) -> list[str]:
    table = read_table_or_backup(disk, directory / "config" / OFFSETS, OffsetTable)
    saved = table.offset_table.get(SAVED_KEY, {0: 0})[0]
    if promised.save_acked <= saved <= max(promised.save_tried, promised.save_acked):
        return []
    return [f"the saved table says {saved}, acknowledged was {promised.save_acked}, tried {promised.save_tried}"]
