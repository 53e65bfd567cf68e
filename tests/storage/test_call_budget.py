"""What an append, a read and a recovery may cost, in calls a message: a number that no other program on the machine changes.

Each budget stands a little above what was counted when it was set. Whoever exceeds one has put something on a path that every
message takes: take it off again, or say in the commit why it is worth that much.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import mark_running
from orbitmq.storage.store import Store
from tests.profiling import profiled
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, STORE_HOST, small_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from orbitmq.storage.config import StorageConfig

MESSAGES = 2048
QUEUES = 8


def calls(work: Callable[[], object]) -> Counter[str]:
    """How often each function was called, those written in C as well."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counted[getattr(argument, "__qualname__", repr(argument))] += 1

    with profiled(count):
        work()
    return counted


def config(directory: Path) -> StorageConfig:
    return small_config(
        directory, segment_bytes=4 << 20, queue_file_bytes=1 << 20, index_slots=1_000_003, index_entries=100_000
    )


def properties(number: int) -> bytes:
    return b"UNIQ_KEY\x01%032X\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02WAIT\x01true\x02" % (number * 2654435761)


def append_all(store: Store, texts: list[bytes]) -> None:
    for number, text in enumerate(texts):
        store.append("T", number % QUEUES, b"x" * 1024, text, BORN_AT_MS, BORN_HOST)
    store.dispatch()


def within(counted: Counter[str], budget: float) -> None:
    per_message = counted.total() / MESSAGES
    assert per_message <= budget, f"{per_message:.1f} calls a message: {counted.most_common(25)}"


def filled(directory: Path) -> Store:
    store = Store(config(directory), STORE_HOST)
    append_all(store, [properties(number) for number in range(MESSAGES)])
    return store


def test_an_append_with_all_its_indexes(tmp_path: Path) -> None:
    store = Store(config(tmp_path), STORE_HOST)
    append_all(store, [properties(number) for number in range(10)])
    texts = [properties(number) for number in range(10, MESSAGES + 10)]
    counted = calls(lambda: append_all(store, texts))
    assert store.keys is not None
    assert store.keys.files[-1].next_entry > MESSAGES, "keys were entered"
    within(counted, 26)
    store.close()


def test_reading_by_32(tmp_path: Path) -> None:
    store = filled(tmp_path)

    def read_all() -> None:
        for queue_id in range(QUEUES):
            offset = 0
            while offset < MESSAGES // QUEUES:
                offset = store.read("T", queue_id, offset, 32).next_offset

    within(calls(read_all), 2)
    store.close()


def test_going_over_a_log_that_the_indexes_know(tmp_path: Path) -> None:
    filled(tmp_path).close()
    mark_running(LocalDisk(), tmp_path)
    (tmp_path / "checkpoint").unlink()
    stores: list[Store] = []
    counted = calls(lambda: stores.append(Store(config(tmp_path), STORE_HOST)))
    assert stores[0].recovered.records == MESSAGES
    within(counted, 10)
    stores[0].close()
