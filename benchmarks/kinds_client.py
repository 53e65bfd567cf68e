"""Each kind of message as a Python program sends it: one process, a few connections, many requests in flight on each.

It takes a core of its own, and most of the time between two messages is its own: what it gets is what a client gets, not what a broker can do.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from benchmarks.broker import BROKER_NAME, KB, PATIENCE_SECONDS, QUEUES
from orbitmq.message import properties as keys
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request, request_with_raw_fields
from orbitmq.protocol.headers.leases import ANY_QUEUE, START_AT_MIN, AckMessage, PopMessage, PopResult
from orbitmq.protocol.headers.send import SendMessageV2, SendReceipt
from orbitmq.protocol.headers.transactions import COMMIT
from orbitmq.protocol.lease_texts import OF_TOPIC, Handle
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from orbitmq.transport.address import Address

    Step = Callable[[Pool, Address, str, int], Awaitable[int]]

CONNECTIONS: Final = 4
IN_FLIGHT: Final = 32
BODY: Final = b"x" * KB
GROUP: Final = "bench"
LEASE_MS: Final = 60_000
BATCH: Final = 32
_ANY_BATCH: Final = "?" * 30
_BETWEEN_NUMBERS: Final = encode_batch(
    [BatchMember(BODY, encode_properties({keys.UNIQUE_KEY: f"{_ANY_BATCH}{member:02X}"})) for member in range(BATCH)]
).split(_ANY_BATCH.encode())
_OFFSET_DIGITS: Final = 16  # in the log, at the end of an id
_END: Final = (
    b'{"commitLogOffset":"%d","commitOrRollback":"%d","fromTransactionCheck":"false","msgId":"%032X",'
    b'"producerGroup":"%b","topic":"%b","tranStateTableOffset":"%d"}'
)
_BUSY_SECONDS: Final = 0.01


def _send(
    topic: str, number: int, properties: dict[str, str], sys_flag: int = 0, members: bytes | None = None
) -> Command:
    header = SendMessageV2(
        producer_group=GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=sys_flag,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=encode_properties({keys.UNIQUE_KEY: f"{number:032X}", **properties}).decode(),
        batch=members is not None,
    )
    if members is not None:
        return request(RequestCode.SEND_BATCH_MESSAGE, header, members)
    return request(RequestCode.SEND_MESSAGE_V2, header, BODY)


async def _call(pool: Pool, address: Address, command: Command) -> Command:
    """A broker that is too busy is asked again: what it refused is not counted."""
    while (answer := await pool.call(address, command, PATIENCE_SECONDS)).code == ResponseCode.SYSTEM_BUSY:
        await asyncio.sleep(_BUSY_SECONDS)
    if answer.code:
        raise SystemExit(f"refused: {answer}")
    return answer


async def _stored(pool: Pool, address: Address, command: Command) -> SendReceipt:
    """Read, as whoever sends a message wants to know where it is."""
    return (await _call(pool, address, command)).read(SendReceipt)


async def plain(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _stored(pool, address, _send(topic, number, {}))
    return 1


async def delay_level(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _stored(pool, address, _send(topic, number, {keys.DELAY: "1"}))
    return 1


async def timer(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _stored(pool, address, _send(topic, number, {keys.TIMER_DELAY_SECONDS: "2"}))
    return 1


async def transaction(pool: Pool, address: Address, topic: str, number: int) -> int:
    half = _send(topic, number, {keys.PREPARED: "true", keys.PRODUCER_GROUP: GROUP}, sys_flag=4)
    receipt = await _stored(pool, address, half)
    # Of fields that are ready: making them anew took as long as half a send, which no broker can make up for.
    offset = int(receipt.msg_id[-_OFFSET_DIGITS:], 16)
    fields = _END % (offset, COMMIT, number, GROUP.encode(), topic.encode(), receipt.queue_offset)
    connection = pool.open_connection(address) or await pool.connection(address)
    connection.notify(request_with_raw_fields(RequestCode.END_TRANSACTION, fields))
    return 1


async def batch(pool: Pool, address: Address, topic: str, number: int) -> int:
    # Only the keys are new, as in a plain send: encoding each member anew took a third of the generator's time.
    members = (b"%030X" % number).join(_BETWEEN_NUMBERS)
    await _stored(pool, address, _send(topic, number, {}, members=members))
    return BATCH


async def pop(pool: Pool, address: Address, topic: str, number: int) -> int:
    header = PopMessage(
        consumer_group=GROUP,
        topic=topic,
        queue_id=ANY_QUEUE,
        max_msg_nums=BATCH,
        invisible_time=LEASE_MS,
        poll_time=0,
        init_mode=START_AT_MIN,
    )
    answer = await pool.call(address, request(RequestCode.POP_MESSAGE, header), PATIENCE_SECONDS)
    if answer.code:
        return 0  # nothing is left
    connection = await pool.connection(address)
    acks = [request(RequestCode.ACK_MESSAGE, ack) for ack in _acks_of(answer.read(PopResult), topic)]
    calls = [connection.start_call(ack, PATIENCE_SECONDS) for ack in acks]  # no task for each
    for call, ack in zip(calls, acks, strict=True):
        if (await call).code:
            await _call(pool, address, ack)
    return len(acks)


def _acks_of(told: PopResult, topic: str) -> Iterator[AckMessage]:
    """Of all that was popped; the answer's header says what that is, so its records are not decoded."""
    starts = (told.start_offset_info or "").split(";")
    for start, offsets in zip(starts, (told.msg_offset_info or "").split(";"), strict=True):
        queue_id, start_offset = map(int, start.split()[1:])
        for offset in map(int, offsets.split()[2].split(",")):
            handle = Handle(
                start_offset,
                told.pop_time,
                told.invisible_time,
                told.revive_qid,
                OF_TOPIC,
                BROKER_NAME,
                queue_id,
                offset,
            )
            yield AckMessage(
                consumer_group=GROUP, topic=topic, queue_id=queue_id, extra_info=handle.text(), offset=offset
            )


STEPS: Final[dict[str, Step]] = {  # by the names that load.c has for them
    "send": plain,
    "delay": delay_level,
    "timer": timer,
    "transaction": transaction,
    "batch": batch,
    "pop": pop,
}


def load(mode: str, address: Address, topic: str, seconds: float) -> dict[str, float]:
    """What load.c prints of it."""
    before = time.process_time()
    total, took = run_loop(_load(address, topic, STEPS[mode], seconds))
    if not total:
        raise SystemExit(f"there was nothing to do for {mode}")
    used = time.process_time() - before
    return {"msgs": total, "errors": 0, "rate": total / took, "cpu": 1e6 * used / total}


async def _load(address: Address, topic: str, step: Step, seconds: float) -> tuple[int, float]:
    """Messages, and the seconds they took. Ends early when a step has nothing left to do."""
    pools = [Pool() for _ in range(CONNECTIONS)]
    deadline = time.monotonic() + seconds
    numbers = iter(range(1 << 40))
    total = 0

    async def one_after_the_other(pool: Pool) -> None:
        nonlocal total
        while time.monotonic() < deadline:
            done = await step(pool, address, topic, next(numbers))
            if not done:
                return
            total += done

    began = time.monotonic()
    at_once = IN_FLIGHT if step is not pop else 1  # a pop has 32 acks in flight by itself
    try:
        await asyncio.gather(*(one_after_the_other(pool) for pool in pools for _ in range(at_once)))
    finally:
        for pool in pools:
            await pool.close()
    return total, time.monotonic() - began
