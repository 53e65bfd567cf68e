"""What a lease consumer asks brokers: to hand out messages for a while, to take their ends, to leave them longer.

    pop ─> messages, each with a handle ─┬─ ack: done with
                                         ├─ change: the lease ends later, or sooner; the message has a new handle
                                         └─ nothing: when the lease ends the broker hands it out again

Java: MQClientAPIImpl.popMessageAsync, processPopResponse, ackMessageAsync, batchAckMessageAsync, changeInvisibleTimeAsync
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbitmq.client.cluster import refusal
from orbitmq.errors import HeaderError, OrbitError, RequestFailed, TransportError
from orbitmq.message import properties as names
from orbitmq.message.record import decode_records
from orbitmq.protocol.bodies.leases import BatchAck, BatchAcks, encode_bits
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.leases import (
    ANY_QUEUE,
    AckMessage,
    ChangedInvisibleTime,
    ChangeInvisibleTime,
    PopMessage,
    PopResult,
)
from orbitmq.protocol.lease_texts import Handle, kind_of, parse_handle, real_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.message import StoredMessage
    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

MAX_AT_ONCE: Final = 32  # more, brokers refuse
_SECONDS: Final = 5.0
_POLL_GRACE_SECONDS: Final = 10.0
_LATE_SECONDS: Final = 0.5  # beyond its wait, then brokers refuse a pop. Java: PopMessageRequestHeader.isTimeoutTooMuch

_Place = tuple[str, int]  # kind of topic and queue, as the texts of a pop name them


class Leasing:
    """The requests of one group in one topic."""

    def __init__(
        self, cluster: Cluster, group: str, subscription: Subscription, *, init_mode: int, orderly: bool
    ) -> None:
        self._cluster = cluster
        self._orderly = orderly
        self._group = group
        self._subscription = subscription
        self._init_mode = init_mode

    async def pop(
        self, broker_name: str, count: int, lease_ms: int, poll_seconds: float, attempt_id: str
    ) -> list[tuple[StoredMessage, Handle]]:
        """Up to `count` messages, leased; the broker waits up to `poll_seconds` for the first."""
        header = PopMessage(
            consumer_group=self._group,
            topic=self._subscription.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=min(count, MAX_AT_ONCE),
            invisible_time=lease_ms,
            poll_time=round(poll_seconds * 1000),
            born_time=0,  # see _popped
            init_mode=self._init_mode,
            exp_type=self._subscription.expression_type,
            exp=self._subscription.expression,
            order=self._orderly,
            attempt_id=attempt_id if self._orderly else None,
        )
        answer = await self._popped(broker_name, header, poll_seconds)
        if answer.code in _NOTHING:
            return []
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestFailed(
                answer.code,
                f"broker {broker_name!r} does not lease messages",
                hint="Apache's brokers do from 5.0 on; Client.consumer works with all of them",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        messages, result = list(decode_records(answer.body)), answer.read(PopResult)
        try:
            return _with_handles(messages, result, broker_name)
        except (LookupError, ValueError) as error:
            raise HeaderError(
                f"what broker {broker_name!r} says of the messages it leased cannot be read: {error}",
                hint="which release is the broker of?",
            ) from error

    async def _popped(self, broker_name: str, header: PopMessage, poll_seconds: float) -> Command:
        """RequestFailed when the broker takes what just left for a pop that is long over: nothing would ever come."""
        loop, clock = asyncio.get_running_loop(), self._cluster.config.clock
        for _ in range(2):  # a clock that is set meanwhile is no reason to fail
            began, header.born_time = loop.time(), clock.now_ms()
            command = request(RequestCode.POP_MESSAGE, header)
            answer = await self._cluster.call(self._master(broker_name), command, poll_seconds + _POLL_GRACE_SECONDS)
            if not _refused_as_late(answer) or loop.time() - began > _LATE_SECONDS:
                return answer
        raise RequestFailed(
            answer.code,
            f"broker {broker_name!r} refuses to lease: by its clock the request waited longer than it was to",
            hint="set the clocks: the one here is behind the broker's",
        )

    async def ack(self, handle: Handle) -> None:
        """RequestFailed when the broker does not know of such a lease."""
        header = AckMessage(
            consumer_group=self._group,
            topic=self._topic(handle),
            queue_id=handle.queue_id,
            extra_info=handle.text(),
            offset=handle.offset,
        )
        await self._cluster.ask(self._master(handle.broker_name), request(RequestCode.ACK_MESSAGE, header), _SECONDS)

    async def ack_many(self, handles: Iterable[Handle]) -> dict[str, OrbitError]:
        """One request a broker. What those answered that did not take theirs, by name: they keep back no acks of others."""
        batches = _batches(self._group, self._subscription.topic, handles)
        failures = await asyncio.gather(*(self._ack_on(name, acks) for name, acks in batches.items()))
        return {name: failure for name, failure in zip(batches, failures, strict=True) if failure is not None}

    async def _ack_on(self, broker_name: str, acks: list[BatchAck]) -> OrbitError | None:
        command = request(RequestCode.BATCH_ACK_MESSAGE, body=BatchAcks(broker_name=broker_name, acks=acks).to_json())
        try:
            await self._cluster.ask(self._master(broker_name), command, _SECONDS)
        except OrbitError as error:
            return error
        return None

    async def change(self, handle: Handle, lease_ms: int) -> Handle:
        """Let the lease end `lease_ms` from now; the handle that counts from now on."""
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=self._topic(handle),
            queue_id=handle.queue_id,
            extra_info=handle.text(),
            offset=handle.offset,
            invisible_time=lease_ms,
        )
        command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        answer = await self._cluster.ask(self._master(handle.broker_name), command, _SECONDS)
        changed = answer.read(ChangedInvisibleTime)
        return handle._replace(
            start_offset=handle.offset,
            pop_time_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    def _topic(self, handle: Handle) -> str:
        return real_topic(self._subscription.topic, self._group, handle.kind)

    def _master(self, broker_name: str) -> Address:
        address = self._cluster.master(broker_name)
        if address is None:
            raise TransportError(f"broker {broker_name!r} has no master now", hint="leases are kept by masters only")
        return address


_NOTHING: Final = frozenset({
    ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND,
})  # fmt: skip


def _refused_as_late(answer: Command) -> bool:
    """A poll that ended without a message has the time of its pop all the same."""
    return answer.code == ResponseCode.POLLING_TIMEOUT and not answer.read(PopResult).pop_time


def _with_handles(
    messages: list[StoredMessage], result: PopResult, broker_name: str
) -> list[tuple[StoredMessage, Handle]]:
    """LookupError or ValueError when the broker's texts do not speak of its messages."""
    starts = {place: int(text) for place, text in _entries(result.start_offset_info).items()}
    offsets = {place: text.split(",") for place, text in _entries(result.msg_offset_info).items()}
    here: dict[_Place, list[int]] = {}
    for message in messages:
        here.setdefault((kind_of(message.topic), message.queue_id), []).append(message.queue_offset)
    counts = dict(entry.rsplit(" ", 1) for entry in (result.order_count_info or "").split(";") if entry)
    leased = []
    for message in messages:
        # An ordered message stays in its queue, so its record does not count its attempts.
        kind = kind_of(message.topic)
        queue_count = counts.get(f"{kind} {message.queue_id}", message.reconsume_times)
        message.reconsume_times = int(counts.get(f"{kind} qo{message.queue_id}%{message.queue_offset}", queue_count))
        given = message.properties.get(names.POP_CHECK_POINT)
        if given is not None:
            leased.append((message, parse_handle(given)))
            continue
        place = (kind_of(message.topic), message.queue_id)
        position = sorted(here[place]).index(message.queue_offset)
        # What a broker counts as the offset may differ from the record's: a batch in one record has one.
        offset = int(offsets[place][position]) if offsets else message.queue_offset
        start = starts[place] if starts else here[place][0]
        handle = Handle(
            start, result.pop_time, result.invisible_time, result.revive_qid,
            place[0], broker_name, message.queue_id, offset,
        )  # fmt: skip
        leased.append((message, handle))
    return leased


def _entries(text: str | None) -> dict[_Place, str]:
    found = {}
    for entry in (text or "").split(";"):
        parts = entry.split(" ")
        if len(parts) == 3:  # kind, queue, value
            found[parts[0], int(parts[1])] = parts[2]
    return found


def _batches(group: str, topic: str, handles: Iterable[Handle]) -> dict[str, list[BatchAck]]:
    """Broker -> one entry for what was leased together, with a bit for each message."""
    bits: dict[Handle, int] = {}
    for handle in handles:
        together = handle._replace(offset=0)
        bits[together] = bits.get(together, 0) | 1 << (handle.offset - handle.start_offset)
    batches: dict[str, list[BatchAck]] = {}
    for handle, found in bits.items():
        ack = BatchAck(
            group=group,
            topic=topic,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue=handle.revive_queue,
            pop_time_ms=handle.pop_time_ms,
            invisible_ms=handle.invisible_ms,
            kind=handle.kind,
            bits=encode_bits(found),
        )
        batches.setdefault(handle.broker_name, []).append(ack)
    return batches
