"""What each kind of message costs beside a plain send: `python -m benchmarks kinds [--quick] [--seconds S] [--rounds N] [--heap SIZE]`.

    plain         sends of 1 KB
    delay level   sends that wait a second (level 1); deliveries run beside them
    timer         sends that wait two seconds on the timer wheel
    transaction   half messages, each committed as soon as it is stored
    batch         32 messages of 1 KB in each request
    pop           messages leased by 32 and acknowledged one by one

Ours beside Apache's, in the same run, each with a fresh store, three ways:

    client    one Python process, 4 connections with 32 requests in flight on each (for pops: acks); its own work is most of the time
    64 x 1    load.c, 64 connections that wait for each answer
    4 x 32    load.c, 4 connections with 32 in flight: here it is the broker alone that takes the time

What counts is each kind's **share** of the plain sends of the same broker right before it (the median of the rounds: a machine that is
slower for a while is so for both), and that share as a multiple of Apache's (1 or more: as good). Two tables: by messages a second; and
by how many messages a second of the broker's processor time is enough for, which no generator hides.
Processor time counts until the last message is delivered; the rate is that of the sends (and acks).

Without Java only ours is measured. Results: benchmarks/results/kinds.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.interop import java

from benchmarks import kinds_client
from benchmarks.broker import (
    KB,
    PATIENCE_SECONDS,
    QUEUES,
    Load,
    Starter,
    create_topic,
    start_apaches,
    start_ours,
)
from benchmarks.machine import about, compile_c, memory_at_hand, processor_seconds
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.offsets import OffsetFound, QueueName
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from benchmarks.broker import Contender
    from orbitmq.transport.address import Address

    Speeds = dict[str, dict[str, float]]  # by broker and cell

RESULTS: Final = Path(__file__).parent / "results" / "kinds.json"
CLIENT: Final = "client"
WAYS: Final[dict[str, tuple[int, int] | None]] = {  # connections of load.c, and requests in flight on each
    CLIENT: None,
    "64 x 1": (64, 1),
    "4 x 32": (4, 32),
}
PLAIN: Final = "plain"
BATCH: Final = "batch"
POP: Final = "pop"
MODES: Final = {  # of load.c
    PLAIN: "send",
    "delay level": "delay",
    "timer": "timer",
    "transaction": "transaction",
    BATCH: "batch",
    POP: "pop",
}
RATES: Final = "messages/s"
THRIFT: Final = "messages for a second of processor time"
SECOND_MB: Final = 256  # that may be written, at most; sends that are pipelined, and batches, are more
QUICK_SECOND_MB: Final = 1280
_LOOK_SECONDS: Final = 0.2


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
        answer = await pool.call(address, question, PATIENCE_SECONDS)
        ends += answer.read(OffsetFound).offset
    return ends


def run_cell(contender: Contender, program: Load, kind: str, way: str, topic: str, seconds: float) -> dict[str, float]:
    create_topic(contender.address, topic)
    if kind == POP:  # what there is to lease; nobody leases as quickly as this
        there = send(contender, program, PLAIN, "4 x 32", topic, seconds)
        run_loop(_wait_for_all(contender.address, topic, int(there["msgs"])))
    before = processor_seconds(contender.process.pid)
    printed = send(contender, program, kind, way, topic, seconds)
    if kind != POP:
        # What is delivered later is part of what a kind costs.
        run_loop(_wait_for_all(contender.address, topic, int(printed["msgs"])))
    used = processor_seconds(contender.process.pid) - before
    return {
        "rate": printed["rate"],
        "processor_us": 1e6 * used / printed["msgs"],
        "generator_us": printed["cpu"],
        "errors": printed["errors"],
        "empty": printed.get("empty", 0.0),  # pops that found nothing, and connections that went because of many
        "given_up": printed.get("given_up", 0.0),
    }


def send(contender: Contender, program: Load, kind: str, way: str, topic: str, seconds: float) -> dict[str, float]:
    shape = WAYS[way]
    is_quick = kind == BATCH or way == "4 x 32"
    with memory_at_hand(int(seconds * (QUICK_SECOND_MB if is_quick else SECOND_MB))) as give_back:
        give_back(seconds)
        if shape is None:
            return kinds_client.load(MODES[kind], contender.address, topic, seconds)
        return program.run(MODES[kind], contender.address, topic, QUEUES, *shape, KB, seconds)


def run_beside_plain(contender: Contender, program: Load, kind: str, way: str, topic: str, seconds: float) -> None:
    """Plain sends right before each kind: some seconds later the machine may be another."""
    beside = run_cell(contender, program, PLAIN, way, f"{topic}-plain", seconds)
    figures = beside if kind == PLAIN else run_cell(contender, program, kind, way, topic, seconds)
    contender.note(f"{kind}, {way}", **figures, **{f"{PLAIN}_{name}": figure for name, figure in beside.items()})


def report(contenders: list[Contender], head: dict[str, object], *, keep: bool) -> None:
    """Shares of the plain sends, in Markdown, and everything in the file of results."""
    medians = {
        contender.name: {
            cell: {figure: statistics.median(values) for figure, values in figures.items()}
            for cell, figures in contender.figures.items()
        }
        for contender in contenders
    }
    speeds = {
        RATES: {name: {cell: figures["rate"] for cell, figures in of.items()} for name, of in medians.items()},
        THRIFT: {
            name: {cell: 1e6 / figures["processor_us"] for cell, figures in of.items()} for name, of in medians.items()
        },
    }
    shares = {
        RATES: {contender.name: shares_of(contender, "rate") for contender in contenders},
        THRIFT: {
            contender.name: {cell: 1 / share for cell, share in shares_of(contender, "processor_us").items()}
            for contender in contenders
        },
    }
    for title, of in speeds.items():
        print(table(title, of, shares[title]))
    if not keep:
        return
    rounds = {contender.name: contender.figures for contender in contenders}
    kept = {"machine": head, "medians": medians, "shares": shares, "rounds": rounds}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def shares_of(contender: Contender, figure: str) -> dict[str, float]:
    """Of the plain sends right before."""
    return {
        cell: statistics.median(
            value / of_plain for value, of_plain in zip(figures[figure], figures[f"{PLAIN}_{figure}"], strict=True)
        )
        for cell, figures in contender.figures.items()
    }


def table(title: str, speeds: Speeds, shares: Speeds) -> str:
    names = list(speeds)
    heads = ["kind", *(f"{name}, {title}" for name in names), *(f"{name}, share" for name in names)]
    if len(names) > 1:
        heads += ["ours to Apache's", "share as a multiple of Apache's"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in speeds[names[0]]:
        texts = [
            cell,
            *(f"{speeds[name][cell]:,.0f}" for name in names),
            *(f"{shares[name][cell]:.2f}" for name in names),
        ]
        if len(names) > 1:
            texts += [f"{of[names[0]][cell] / of[names[1]][cell]:.2f}" for of in (speeds, shares)]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join([*lines, ""])


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each cell and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--heap", default="4g", help="of Apache's broker")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it; results are not kept")
    parser.add_argument("--quick", action="store_true", help="one round, a second for each cell, 512 MB of heap")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds, options.heap = 1, 1.0, "512m"
    head = about(java=f"-Xmx{options.heap}", rounds=options.rounds, seconds=options.seconds)
    starters: list[Starter] = [start_ours]
    if missing := java.missing_tools():
        print(f"only ours: {missing}", file=sys.stderr)
    else:
        starters.append(start_apaches)
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as base, ExitStack() as stack:
        program = Load(compile_c(Path(base), "load"))
        contenders = [
            stack.enter_context(start(Path(base) / str(number), sync=False, heap=options.heap))
            for number, start in enumerate(starters)
        ]
        cells = [(kind, way) for way in WAYS for kind in MODES if options.only in f"{kind}, {way}"]
        for contender in contenders:
            for number, (kind, way) in enumerate(cells):
                run_cell(contender, program, kind, way, f"WarmUp-{number}", options.seconds)
        for turn in range(options.rounds):
            for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                for number, (kind, way) in enumerate(cells):
                    run_beside_plain(contender, program, kind, way, f"Kind-{number}-{turn}", options.seconds)
        report(contenders, head, keep=not options.only)
