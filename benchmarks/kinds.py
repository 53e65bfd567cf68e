"""What each kind of message costs beside a plain send: `python -m benchmarks kinds [--quick] [--seconds S] [--rounds N] [--heap SIZE]`.

    plain         sends of 1 KB
    delay level   sends that wait a second (level 1); deliveries run beside them
    timer         sends that wait two seconds on the timer wheel
    transaction   half messages, each committed as soon as it is stored
    batch         32 messages of 1 KB in each request
    pop           messages leased by 32 and acknowledged one by one

Ours beside Apache's, in the same run, each with a fresh store. What counts is each kind's **share** of the plain sends of the same
broker right before it (the median of the rounds: a machine that is slower for a while is so for both), and that share as a multiple of
Apache's (1 or more: as good). Two tables: by messages a second; and by how many messages a second of the broker's processor time is
enough for, which a generator that is slower than the broker does not hide.
Processor time counts until the last message is delivered; the rate is that of the sends (and acks).
The generator is Python and takes a core of its own: compare shares, not rates (those are `python -m benchmarks broker`). What it spends
on a message is in the file of results: where that is all of the time between two messages, the rate is the generator's.
As it is, it takes about ten minutes on two quiet cores.

Without Java only ours is measured. Results: benchmarks/results/kinds.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.interop import java

from benchmarks.broker import (
    BROKER_NAME,
    KB,
    PATIENCE_SECONDS,
    QUEUES,
    Starter,
    create_topic,
    start_apaches,
    start_ours,
)
from benchmarks.machine import about, memory_at_hand, processor_seconds
from orbitmq.message import properties as keys
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request, request_with_raw_fields
from orbitmq.protocol.headers.leases import ANY_QUEUE, START_AT_MIN, AckMessage, PopMessage, PopResult
from orbitmq.protocol.headers.offsets import OffsetFound, QueueName
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.protocol.headers.transactions import COMMIT
from orbitmq.protocol.lease_texts import OF_TOPIC, Handle
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.broker import Contender
    from orbitmq.transport.address import Address

    Step = Callable[[Pool, Address, str, int], Awaitable[int]]
    Speeds = dict[str, dict[str, float]]  # by broker and kind

RESULTS: Final = Path(__file__).parent / "results" / "kinds.json"
CONNECTIONS: Final = 4
IN_FLIGHT: Final = 32
BODY: Final = b"x" * KB
GROUP: Final = "bench"
LEASE_MS: Final = 60_000
BATCH: Final = 32
MEMORY_MB: Final = 512  # for a cell
BATCH_MEMORY_MB: Final = 1536
_ANY_KEY: Final = "?" * 32
_MEMBERS: Final = encode_batch([BatchMember(BODY, encode_properties({keys.UNIQUE_KEY: _ANY_KEY}))] * BATCH).replace(
    _ANY_KEY.encode(), b"%032X"
)
_OFFSET_DIGITS: Final = 16  # in the log, at the end of an id
_END: Final = (
    b'{"commitLogOffset":"%d","commitOrRollback":"%d","fromTransactionCheck":"false","msgId":"%032X",'
    b'"producerGroup":"%b","topic":"%b","tranStateTableOffset":"%d"}'
)
_BUSY_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 0.2


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


async def plain(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _call(pool, address, _send(topic, number, {}))
    return 1


async def delay_level(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _call(pool, address, _send(topic, number, {keys.DELAY: "1"}))
    return 1


async def timer(pool: Pool, address: Address, topic: str, number: int) -> int:
    await _call(pool, address, _send(topic, number, {keys.TIMER_DELAY_SECONDS: "2"}))
    return 1


async def transaction(pool: Pool, address: Address, topic: str, number: int) -> int:
    half = _send(topic, number, {keys.PREPARED: "true", keys.PRODUCER_GROUP: GROUP}, sys_flag=4)
    receipt = (await _call(pool, address, half)).fields
    # Of fields that are ready: making them anew took as long as half a send, which no broker can make up for.
    offset = int(receipt["msgId"][-_OFFSET_DIGITS:], 16)
    fields = _END % (offset, COMMIT, number, GROUP.encode(), topic.encode(), int(receipt["queueOffset"]))
    connection = pool.open_connection(address) or await pool.connection(address)
    connection.notify(request_with_raw_fields(RequestCode.END_TRANSACTION, fields))
    return 1


async def batch(pool: Pool, address: Address, topic: str, number: int) -> int:
    # Only the keys are new, as in a plain send: encoding each member anew took a third of the generator's time.
    members = _MEMBERS % tuple(range(number * BATCH, (number + 1) * BATCH))
    await _call(pool, address, _send(topic, number, {}, members=members))
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


PLAIN: Final = "plain"
KINDS: Final[dict[str, Step]] = {
    PLAIN: plain,
    "delay level": delay_level,
    "timer": timer,
    "transaction": transaction,
    "batch": batch,
    "pop": pop,
}


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


async def _wait_for_all(address: Address, topic: str, total: int) -> None:
    """Until all of them can be consumed, so that no kind pays for the one before it."""
    pool = Pool()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await _stored(pool, address, topic) < total:
                await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await pool.close()


async def _stored(pool: Pool, address: Address, topic: str) -> int:
    ends = 0
    for queue_id in range(QUEUES):
        question = request(RequestCode.GET_MAX_OFFSET, QueueName(topic=topic, queue_id=queue_id))
        ends += (await _call(pool, address, question)).read(OffsetFound).offset
    return ends


def run_cell(contender: Contender, kind: str, topic: str, seconds: float) -> dict[str, float]:
    create_topic(contender.address, topic)
    step = KINDS[kind]
    if step is pop:
        with memory_at_hand(MEMORY_MB) as give_back:
            give_back(seconds)
            run_loop(_load(contender.address, topic, plain, seconds))
    with memory_at_hand(BATCH_MEMORY_MB if step is batch else MEMORY_MB) as give_back:
        give_back(seconds)
        before, own_before = processor_seconds(contender.process.pid), time.process_time()
        total, took = run_loop(_load(contender.address, topic, step, seconds))
        own = time.process_time() - own_before
    if step is not pop:
        run_loop(_wait_for_all(contender.address, topic, total))  # what is delivered later is part of what a kind costs
    used = processor_seconds(contender.process.pid) - before
    if not total:
        raise SystemExit(f"{contender.name} had nothing to do for {kind}")
    return {"rate": total / took, "processor_us": 1e6 * used / total, "generator_us": 1e6 * own / total}


def run_beside_plain(contender: Contender, kind: str, topic: str, seconds: float) -> None:
    """Plain sends right before each kind: some seconds later the machine may be another."""
    beside = run_cell(contender, PLAIN, f"{topic}-plain", seconds)
    figures = beside if kind == PLAIN else run_cell(contender, kind, topic, seconds)
    contender.note(kind, **figures, **{f"{PLAIN}_{name}": figure for name, figure in beside.items()})


def report(contenders: list[Contender], head: dict[str, object]) -> None:
    """Shares of the plain sends, in Markdown, and everything in the file of results."""
    medians = {
        contender.name: {
            kind: {figure: statistics.median(values) for figure, values in figures.items()}
            for kind, figures in contender.figures.items()
        }
        for contender in contenders
    }
    speeds = {
        "messages/s": {name: {kind: figures["rate"] for kind, figures in of.items()} for name, of in medians.items()},
        "messages for a second of processor time": {
            name: {kind: 1e6 / figures["processor_us"] for kind, figures in of.items()} for name, of in medians.items()
        },
    }
    shares = {
        "messages/s": {contender.name: shares_of(contender, "rate") for contender in contenders},
        "messages for a second of processor time": {
            contender.name: {kind: 1 / share for kind, share in shares_of(contender, "processor_us").items()}
            for contender in contenders
        },
    }
    for title, of in speeds.items():
        print(table(title, of, shares[title]))
    RESULTS.parent.mkdir(exist_ok=True)
    rounds = {contender.name: contender.figures for contender in contenders}
    kept = {"machine": head, "medians": medians, "shares": shares, "rounds": rounds}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def shares_of(contender: Contender, figure: str) -> dict[str, float]:
    """Of the plain sends right before."""
    return {
        kind: statistics.median(
            value / of_plain for value, of_plain in zip(figures[figure], figures[f"{PLAIN}_{figure}"], strict=True)
        )
        for kind, figures in contender.figures.items()
    }


def table(title: str, speeds: Speeds, shares: Speeds) -> str:
    names = list(speeds)
    heads = ["kind", *(f"{name}, {title}" for name in names), *(f"{name}, share" for name in names)]
    if len(names) > 1:
        heads.append("share as a multiple of Apache's")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind in KINDS:
        cells = [
            kind,
            *(f"{speeds[name][kind]:,.0f}" for name in names),
            *(f"{shares[name][kind]:.2f}" for name in names),
        ]
        if len(names) > 1:
            cells.append(f"{shares[names[0]][kind] / shares[names[1]][kind]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="4g", help="of Apache's broker")
    parser.add_argument("--quick", action="store_true", help="one round, two seconds for each cell, 512 MB of heap")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds, options.heap = 1, 2.0, "512m"
    head = about(java=f"-Xmx{options.heap}", rounds=options.rounds, seconds=options.seconds)
    starters: list[Starter] = [start_ours]
    if missing := java.missing_tools():
        print(f"only ours: {missing}", file=sys.stderr)
    else:
        starters.append(start_apaches)
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as base, ExitStack() as stack:
        contenders = [
            stack.enter_context(start(Path(base) / str(number), sync=False, heap=options.heap))
            for number, start in enumerate(starters)
        ]
        for contender in contenders:
            for number, kind in enumerate(KINDS):
                run_cell(contender, kind, f"WarmUp-{number}", options.seconds)
        for turn in range(options.rounds):
            for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                for number, kind in enumerate(KINDS):
                    run_beside_plain(contender, kind, f"Kind-{number}-{turn}", options.seconds)
        report(contenders, head)
