"""Builds of the broker that break a promise each, to see that a checker notices; see machine.py. The rest are in tests/crash."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.broker import Broker
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.leases.settling import Settling
from orbitmq.message.record import decode_records, encode_stored
from orbitmq.storage.appended import Appended
from orbitmq.storage.replica import Replica
from orbitmq.storage.store import Store
from tests.crash import broken_broker
from tests.faults import leases, library, orders, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.storage.reading import ReadResult

_EVERY: Final = 10
_BLIND_SECONDS: Final = 1.5

_append: Final = Store.append


def _every_tenth_order(change: Callable[..., Appended], phase: int = 0) -> None:
    """`change(store, topic, queue_id, body, *rest)` stores every tenth order of each queue in its own way.

    With another phase, others than those: two builds in one must not hide each other.
    """
    counts = [0] * orders.QUEUES
    usual = Store.append

    def append(self: Store, topic: str, queue_id: int, *rest: Any) -> Appended:
        if topic != orders.TOPIC:
            return usual(self, topic, queue_id, *rest)
        counts[queue_id] += 1
        store = change if counts[queue_id] % _EVERY == phase else usual
        return store(self, topic, queue_id, *rest)

    Store.append = append  # type: ignore[assignment]


def loses_messages() -> None:
    _every_tenth_order(lambda store, _topic, queue_id, *rest: _append(store, "Nowhere", queue_id, *rest))


def loses_what_the_library_sent() -> None:
    usual, count = Store.append, 0

    def append(self: Store, topic: str, *rest: Any) -> Appended:
        nonlocal count
        count += topic == library.TOPIC
        return usual(self, "Nowhere" if topic == library.TOPIC and count % 3 == 0 else topic, *rest)

    Store.append = append  # type: ignore[assignment]


def skips_messages() -> None:
    """Every tenth order cannot be read."""
    read = Store.read

    def skip(self: Store, topic: str, *rest: Any, **more: Any) -> ReadResult:
        result = read(self, topic, *rest, **more)
        if topic == orders.TOPIC:
            kept = [
                memoryview(encode_stored(message))
                for buffer in result.buffers
                for message in decode_records(buffer)
                if message.queue_offset % _EVERY != 7
            ]
            result.buffers, result.count, result.total_bytes = kept, len(kept), sum(map(len, kept))
        return result

    Store.read = skip  # type: ignore[method-assign]


def stops_badly() -> None:
    stop = Broker.stop

    async def fail(self: Broker) -> None:
        await stop(self)
        raise RuntimeError("on purpose")

    Broker.stop = fail  # type: ignore[method-assign]


def doubles_messages() -> None:
    def twice(store: Store, *message: Any) -> Appended:
        _append(store, *message)
        return _append(store, *message)

    _every_tenth_order(twice)


def swaps_messages() -> None:
    """Every tenth message is stored behind the one that follows it."""
    held: dict[int, tuple[Any, ...]] = {}
    usual = Store.append

    def append(self: Store, topic: str, queue_id: int, *rest: Any) -> Appended:
        appended = usual(self, topic, queue_id, *rest)
        if topic == orders.TOPIC and queue_id in held:
            usual(self, topic, queue_id, *held.pop(queue_id))
        return appended

    Store.append = append  # type: ignore[assignment]

    def hold(store: Store, topic: str, queue_id: int, *rest: Any) -> Appended:
        held[queue_id] = rest
        end = store.log.end
        return Appended(end, end, store.queue_range(topic, queue_id).max_offset, 0)

    _every_tenth_order(hold, phase=5)


def invents_messages() -> None:
    def more(store: Store, topic: str, queue_id: int, body: bytes, *rest: Any) -> Appended:
        _append(store, topic, queue_id, b"nobody sent this", *rest)
        return _append(store, topic, queue_id, body, *rest)

    _every_tenth_order(more, phase=5)


def wrong_receipts() -> None:
    """Every tenth message is said to be one place further than it is."""

    def misplace(store: Store, *message: Any) -> Appended:
        appended = _append(store, *message)
        return Appended(appended.commit_log_offset, appended.end, appended.queue_offset + 1, appended.stored_at_ms)

    _every_tenth_order(misplace, phase=3)


def shows_late() -> None:
    """What is acknowledged can be read only a while later."""
    dispatch, last = Store.dispatch, time.monotonic()

    def seldom(self: Store) -> None:
        nonlocal last
        if time.monotonic() > last + _BLIND_SECONDS:
            last = time.monotonic()
            dispatch(self)

    Store.dispatch = seldom  # type: ignore[method-assign]


def _commits(change: Callable[[int], int]) -> None:
    commit = ConsumerOffsets.commit

    def changed(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
        commit(self, group, topic, queue_id, change(offset) if group == progress.GROUP else offset)

    ConsumerOffsets.commit = changed  # type: ignore[method-assign]


def forgets_commits() -> None:
    _commits(lambda offset: offset // 2)


def invents_commits() -> None:
    _commits(lambda offset: offset + 1000)


def ignores_acks() -> None:
    def ignore(_self: Settling, *arguments: Any) -> None:
        told = arguments[-1]
        told(0)

    Settling.ack = ignore  # type: ignore[assignment]


def leases_twice() -> None:
    """Where a group that leases goes on is not remembered."""
    commit = ConsumerOffsets.commit

    def forget(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
        if group != leases.GROUP:
            commit(self, group, topic, queue_id, offset)

    ConsumerOffsets.commit = forget  # type: ignore[method-assign]


def damages_copies() -> None:
    """A slave changes the last dot of a body."""
    append = Replica.append

    def damage(self: Replica, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
        append(self, ((offset, bytes(data).replace(b"....", b"...,", 1)) for offset, data in pieces))

    Replica.append = damage  # type: ignore[method-assign]


VARIANTS: Final[dict[str, Callable[[], None]]] = {
    **broken_broker.VARIANTS,
    **{
        variant.__name__: variant
        for variant in (
            loses_messages, loses_what_the_library_sent, skips_messages, stops_badly, doubles_messages, swaps_messages, invents_messages, wrong_receipts, shows_late,
            forgets_commits, invents_commits, ignores_acks, leases_twice, damages_copies,
        )
    },
}  # fmt: skip
