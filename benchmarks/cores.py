"""One broker a core: `python -m benchmarks cores [--quick] [--seconds S] [--rounds N]`.

    one    a broker and its load generator, both on the first core
    two    the same twice at the same time, the second pair on the second core

A broker is one thread, so more cores mean more brokers in one cluster. On a small machine the load generator takes a share of the same
cores. To account for it each broker shares its core with the generator that loads it: then one pair has one core, two pairs have
two, and the ratio of their rates says what the second broker is worth. Processor time a message, of brokers and generators, stands
beside it.

Then the same command that runs one broker a core, `orbitmq dev --brokers 2`, and one producer of our client: how many of its messages
each broker got. Results: benchmarks/results/cores.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop.processes import Process

import orbitmq as mq
from benchmarks.broker import KB, QUEUES, Load, create_topic, start_ours
from benchmarks.machine import about, children_seconds, compile_c, processor_seconds
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from benchmarks.broker import Contender

RESULTS: Final = Path(__file__).parent / "results" / "cores.json"
CELLS: Final = ((64, 1), (4, 32))  # connections, in flight on each
BALANCED_MESSAGES: Final = 400


def pin(pid: int, core: int) -> None:
    """All threads it has; those to come do as the one that starts them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def run_pairs(
    pairs: list[tuple[Contender, Load]], topic: str, cell: tuple[int, int], seconds: float
) -> dict[str, float]:
    """All of them at once."""
    brokers = [broker for broker, _ in pairs]
    before, generators_before = sum(processor_seconds(b.process.pid) for b in brokers), children_seconds()

    def load_one(pair: tuple[Contender, Load]) -> dict[str, float]:
        broker, load = pair
        return load.run("send", broker.address, topic, QUEUES, *cell, KB, seconds)

    with ThreadPoolExecutor(len(pairs)) as threads:
        printed = list(threads.map(load_one, pairs))
    messages = sum(one["msgs"] for one in printed)
    return {
        "rate": sum(one["rate"] for one in printed),
        "broker_us": 1e6 * (sum(processor_seconds(b.process.pid) for b in brokers) - before) / messages,
        "generator_us": 1e6 * (children_seconds() - generators_before) / messages,
    }


def measure(folder: Path, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    program = compile_c(folder, "load")
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with ExitStack() as stack:
        pairs = []
        for number, core in enumerate(cores):
            broker = stack.enter_context(start_ours(folder / f"broker-{number}", sync=False, heap=""))
            pin(broker.process.pid, core)
            create_topic(broker.address, "Cores")
            pairs.append((broker, Load(program, "taskset", "-c", str(core))))
        for turn in range(rounds + 1):  # the first warms up
            for cell in CELLS:
                of_cell = found.setdefault(f"send {cell[0]} x {cell[1]}", {"one": [], "two": []})
                one = run_pairs(pairs[turn % 2 :][:1], "Cores", cell, seconds)
                two = run_pairs(pairs, "Cores", cell, seconds)
                if turn:
                    of_cell["one"].append(one)
                    of_cell["two"].append(two)
    return {name: summary(of_cell) for name, of_cell in found.items()}


def summary(of_cell: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    medians: dict[str, Any] = {
        which: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
        for which, runs in of_cell.items()
    }
    one, two = (medians[which]["broker_us"] + medians[which]["generator_us"] for which in ("one", "two"))
    return {
        **medians,
        "two to one": medians["two"]["rate"] / medians["one"]["rate"],
        "two to one, by processor time": 2 * one / two,  # what it would be if nobody else used these cores
    }


def balance(folder: Path) -> dict[str, int]:
    """Messages by broker, of one producer against `orbitmq dev --brokers 2`."""
    topics = folder / "topics.toml"
    topics.write_text("[topics.Balanced]\n")
    command = [sys.executable, "-m", "orbitmq", "dev", "--brokers", "2", "--ephemeral", "--json-ready"]
    command += ["--port", "0", "--broker-port", "0", "--topics", str(topics)]
    process = Process(command, folder / "dev.out", {"HOME": str(folder)})
    try:
        ready = json.loads(process.wait_for_line("nameServer"))
        return run_loop(_send_many(ready["nameServer"]))
    finally:
        process.stop()


async def _send_many(name_server: str) -> dict[str, int]:
    by_broker: dict[str, int] = {}
    async with mq.connect(name_server) as client, client.producer(group="balance") as producer:
        for number in range(BALANCED_MESSAGES):
            receipt = await producer.send("Balanced", b"%d" % number)
            name = receipt.queue.broker_name
            by_broker[name] = by_broker.get(name, 0) + 1
    return by_broker


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each cell and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of a second")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    head = about(rounds=options.rounds, seconds=options.seconds)
    with tempfile.TemporaryDirectory(prefix="orbitmq-cores-") as base:
        folder = Path(base)
        cells = measure(folder, options.seconds, options.rounds)
        shares = balance(folder)
    print(
        "\n| | one broker | two brokers | two to one | the same by processor time | broker us, one / two | generator us, one / two |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, of in cells.items():
        one, two = of["one"], of["two"]
        print(
            f"| {name} | {one['rate']:,.0f} | {two['rate']:,.0f} | {of['two to one']:.2f} "
            f"| {of['two to one, by processor time']:.2f} | {one['broker_us']:.2f} / "
            f"{two['broker_us']:.2f} | {one['generator_us']:.2f} / {two['generator_us']:.2f} |"
        )
    print(f"\n{BALANCED_MESSAGES} messages of one producer, by broker: {shares}")
    RESULTS.parent.mkdir(exist_ok=True)
    everything = {"machine": head, "cells": cells, "messages by broker": shares}
    RESULTS.write_text(json.dumps(everything, indent=2) + "\n")
