"""Encoded rows on their way to the brokers: requests of many messages, several at a time, retried while there is hope.

Rows without an order key go to queues in turn, to other brokers when one refuses. Rows with one belong to a queue, which takes
its requests one after the other: their order holds. Delayed rows travel alone, because no broker takes them in a batch; rows that say
when they were born share a request with those of the same millisecond, because a batch has one such time.
A row counts as sent when its broker says that it is as safe as it promises; what is stored less safely is sent again, with the
same ids.

    rows ─┬─ no key ──> requests, any queue
          ├─ order key ──> grouped by queue ──> requests of that queue, in order
          └─ delayed ──> one message each
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.client.namespaces import wrapped
from orbitmq.client.producer import Producer
from orbitmq.client.producer_options import ProducerOptions
from orbitmq.client.queue_choice import queue_for_key
from orbitmq.client.receipts import SendStatus, unconfirmed
from orbitmq.message import Message
from orbitmq.message.properties import decode_properties
from orbitmq.spark.patience import patiently
from orbitmq.spark.sink_rows import BORN_NOW, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    import numpy.typing as npt

    from orbitmq.message import QueueRef
    from orbitmq.spark.access import Link
    from orbitmq.spark.sink_options import SinkOptions
    from orbitmq.spark.sink_rows import EncodedRows

    _Delayed = tuple[
        Message, str | None, timedelta | datetime | None
    ]  # with its order key, and when it is to be delivered

T = TypeVar("T")

_MAX_ROWS: Final = 4096  # in one request
_SINGLES_AT_ONCE: Final = 256
_IDS_AT_ONCE: Final = 16_384  # asking the link's thread takes as long as encoding hundreds of rows


class SinkSender:
    """Sends for one task, from its thread. `finish` must be called: until then nothing is certain."""

    def __init__(self, link: Link, options: SinkOptions) -> None:
        self._link = link
        self._options = options
        self._producer = link.kept(_kept_as(options), lambda: _producer(link, options))
        self._ids: list[str] = []
        self._waiting: deque[Future[None]] = deque()
        self._queues: dict[str, tuple[QueueRef, ...]] = {}
        self._turns: dict[QueueRef, asyncio.Lock] = {}
        self._failed = False

    def new_ids(self, count: int) -> list[str]:
        if len(self._ids) < count:
            self._ids += self._link.run(self._producer.new_ids(max(count, _IDS_AT_ONCE)))
        taken, self._ids = self._ids[:count], self._ids[count:]
        return taken

    def send(self, rows: EncodedRows) -> None:
        """Begins sending; waits while too much is on its way. Raises what an earlier request failed with."""
        topics = rows.topics.unique().to_pylist()
        for topic in topics:
            of_topic = np.flatnonzero(_equal(rows.topics, topic)) if len(topics) > 1 else np.arange(len(rows.members))
            alone = of_topic[rows.travels_alone[of_topic]]
            together = of_topic[~rows.travels_alone[of_topic]]
            if len(alone):
                self._send_alone(topic, rows, alone)
            if rows.order_keys is None:
                self._send_together(topic, None, rows, together)
                continue
            for queue, chosen in self._by_queue(topic, rows.order_keys, together):
                self._send_together(topic, queue, rows, chosen)

    def finish(self) -> None:
        """Until all is stored."""
        while self._waiting:
            self._waiting.popleft().result()

    def cancel(self) -> None:
        self._failed = True
        while self._waiting:
            self._waiting.popleft().cancel()

    # ---- requests

    def _send_together(
        self, topic: str, queue: QueueRef | None, rows: EncodedRows, chosen: npt.NDArray[np.int64]
    ) -> None:
        if not len(chosen):
            return
        if rows.born_ms is None:
            self._send_born_together(topic, queue, rows, chosen, None)
            return
        if queue is None:  # in any order, so in that of their birth
            chosen = chosen[np.argsort(rows.born_ms[chosen], kind="stable")]
        born = rows.born_ms[chosen]
        for together in np.split(chosen, np.flatnonzero(np.diff(born)) + 1):
            born_ms = int(rows.born_ms[together[0]])
            self._send_born_together(topic, queue, rows, together, born_ms if born_ms != BORN_NOW else None)

    def _send_born_together(
        self, topic: str, queue: QueueRef | None, rows: EncodedRows, chosen: npt.NDArray[np.int64], born_ms: int | None
    ) -> None:
        members = rows.members if len(chosen) == len(rows.members) else rows.members.take(pa.array(chosen))
        offsets, data = _buffers(members)
        for start, stop in cut(np.diff(offsets), self._options.batch_bytes, _MAX_ROWS):
            body = bytes(data[offsets[start] : offsets[stop]])
            self._begin(self._send_encoded(topic, queue, body, born_ms))

    def _by_queue(
        self, topic: str, order_keys: pa.Array, chosen: npt.NDArray[np.int64]
    ) -> list[tuple[QueueRef | None, npt.NDArray[np.int64]]]:
        """The rows of each queue, in their order; those without a key go anywhere."""
        if not len(chosen):
            return []
        encoded = order_keys.take(pa.array(chosen)).dictionary_encode()
        queues = self._queues_of(topic)
        index_of_queue = {queue: index for index, queue in enumerate(queues)}
        of_key = [index_of_queue[queue_for_key(queues, key)] for key in encoded.dictionary.to_pylist()]
        indexes = encoded.indices.fill_null(len(of_key)).to_numpy(zero_copy_only=False)
        of_row = np.array([*of_key, -1], np.int64)[indexes]
        return [
            (queues[index] if index >= 0 else None, chosen[of_row == index]) for index in np.unique(of_row).tolist()
        ]

    def _send_alone(self, topic: str, rows: EncodedRows, chosen: npt.NDArray[np.int64]) -> None:
        assert rows.properties is not None, "some travel alone"
        order_keys = rows.order_keys.to_pylist() if rows.order_keys is not None else None
        for start in range(0, len(chosen), _SINGLES_AT_ONCE):
            messages: list[_Delayed] = []
            for row in chosen[start : start + _SINGLES_AT_ONCE].tolist():
                message = Message(
                    topic, rows.bodies[row].as_py(), properties=decode_properties(rows.properties[row].as_py())
                )
                when = rows.when[row].as_py() if rows.when is not None else None
                messages.append((message, order_keys[row] if order_keys is not None else None, when))
            self._begin(self._send_messages(topic, messages))

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        self._waiting.append(self._link.submit(sending))
        while len(self._waiting) > self._options.max_in_flight or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()

    # ---- on the link's loop

    async def _send_encoded(self, topic: str, queue: QueueRef | None, body: bytes, born_ms: int | None) -> None:
        async def once() -> None:
            self._check(topic, await self._producer.send_encoded(topic, body, queue=queue, born_ms=born_ms))

        if queue is None:
            await self._patiently(topic, once)
            return
        async with self._turns.setdefault(queue, asyncio.Lock()):
            if not self._failed:  # what follows a failed request of its queue must not be stored before it
                await self._patiently(topic, once)

    async def _send_messages(self, topic: str, messages: list[_Delayed]) -> None:
        async def send(message: Message, order_key: str | None, when: timedelta | datetime | None) -> None:
            delay = when if isinstance(when, timedelta) else None
            deliver_at = when if isinstance(when, datetime) else None

            async def once() -> None:
                sent = await self._producer.send_message(
                    message, order_key=order_key, delay=delay, deliver_at=deliver_at
                )
                self._check(topic, sent.status)

            await self._patiently(topic, once)

        await asyncio.gather(*(send(*one) for one in messages))

    def _check(self, topic: str, status: SendStatus) -> None:
        if status is not SendStatus.STORED and not self._options.accepts_unconfirmed:
            raise unconfirmed(status, topic)

    async def _patiently(self, topic: str, once: Callable[[], Coroutine[Any, Any, T]]) -> T:
        wire_topic = wrapped(self._options.access.namespace, topic)
        try:
            return await patiently(self._producer.cluster, [wire_topic], self._options.retry_ms / 1000, once)
        except BaseException:
            self._failed = True
            raise

    def _queues_of(self, topic: str) -> tuple[QueueRef, ...]:
        queues = self._queues.get(topic)
        if queues is None:

            async def once() -> list[QueueRef]:
                return await self._producer.queues(topic)

            queues = self._queues[topic] = tuple(self._link.run(self._patiently(topic, once)))
        return queues


def _kept_as(options: SinkOptions) -> tuple[str, str, int, bool]:
    """Sinks that differ in nothing of this share a producer."""
    return "sink", options.group, options.max_message_bytes, options.accepts_unconfirmed


def _producer(link: Link, options: SinkOptions) -> Producer:
    made = Producer(
        link.config,
        options.group,
        ProducerOptions(
            timeout_seconds=options.access.timeout_seconds,
            max_message_bytes=options.max_message_bytes,
            max_in_flight_bytes=64 << 20,
            retry_unconfirmed=not options.accepts_unconfirmed,  # another broker may be able to keep its promise now
        ),
    )
    return link.run(made.start())


def _equal(topics: pa.Array, topic: str) -> npt.NDArray[np.bool_]:
    return pc.equal(topics, topic).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _buffers(column: pa.Array) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Where each value begins and ends, and the bytes of all."""
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    return found, memoryview(data)
