"""What a message costs when there is much of everything: `python -m benchmarks growth [--quick] [--minutes M] [--rounds N]`.

    small          64 connections x 1 in flight, 8 queues
    10,000 queues  the same; every message goes to another queue of one topic
    5,000 connections x 1, 8 queues
    by minute      64 x 1, 100 B, a few seconds of load at the beginning of each minute, for --minutes of them

One broker of ours, on one store. Rates depend on what else the machine does, and the load generator has more to do with more
connections: beside each rate stand the broker's and the generator's processor time a message, and the ratio is of both. Over an
hour a message must cost the same: the last third of the minutes is compared with the first. Results: benchmarks/results/growth.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.broker import KB, QUEUES, Load, create_topic, start_ours
from benchmarks.machine import about, children_seconds, compile_c, memory_mb, processor_seconds

if TYPE_CHECKING:
    from benchmarks.broker import Contender

RESULTS: Final = Path(__file__).parent / "results" / "growth.json"
MINUTE_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 1.0  # until all connections are accepted


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    queues: int
    connections: int
    body: int = KB


def run_case(broker: Contender, load: Load, case: Case, topic: str, seconds: float) -> dict[str, float]:
    """What is done for connections, and not for messages, is left out: as much again is measured alone, and taken off."""
    words = (broker.address, topic, case.queues, case.connections, 1, case.body)
    marks = [(processor_seconds(broker.process.pid), children_seconds())]
    for lasting in (0.0, seconds):  # the first: every connection sends once, and is closed
        printed = load.run("send", *words, lasting, settle=SETTLE_SECONDS if lasting else 0.0)
        if printed["errors"]:
            raise SystemExit(f"{case.name}: {printed['errors']:.0f} errors")
        marks.append((processor_seconds(broker.process.pid), children_seconds()))
    messages = printed["msgs"] + printed.get("settled", 0.0) - case.connections  # a machine too busy settles nothing
    broker_seconds, generator_seconds = (last - 2 * middle + first for first, middle, last in zip(*marks, strict=True))
    return {
        "rate": printed["rate"],
        "p50_ms": printed["p50"],
        "p99_ms": printed["p99"],
        "broker_us": 1e6 * broker_seconds / messages,
        "generator_us": 1e6 * generator_seconds / messages,
    }


def compare(broker: Contender, load: Load, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians by case, with the ratios to the first."""
    cases = [
        Case("small", QUEUES, 64),
        Case(f"{options.queues:,} queues", options.queues, 64),
        Case(f"{options.connections:,} connections", QUEUES, options.connections),
    ]
    rounds: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    for case in cases:
        create_topic(broker.address, f"Growth-{case.queues}", case.queues)
        run_case(broker, load, case, f"Growth-{case.queues}", options.seconds)  # warms it up, and makes the queues
    for turn in range(options.rounds):
        for case in cases if turn % 2 == 0 else cases[::-1]:
            rounds[case.name].append(run_case(broker, load, case, f"Growth-{case.queues}", options.seconds))
    medians = {
        name: {figure: statistics.median(one[figure] for one in runs) for figure in runs[0]}
        for name, runs in rounds.items()
    }
    small = medians["small"]
    for figures in medians.values():
        figures["rate_ratio"] = figures["rate"] / small["rate"]
        figures["processor_ratio"] = small["broker_us"] / figures["broker_us"]
    return medians


def by_minute(broker: Contender, load: Load, minutes: int, seconds: float, pause: float) -> list[dict[str, float]]:
    case = Case("by minute", QUEUES, 64, 100)
    create_topic(broker.address, "ByMinute")
    figures = []
    for minute in range(minutes):
        began = time.monotonic()
        one = run_case(broker, load, case, "ByMinute", seconds)
        one["anonymous_mb"] = memory_mb(broker.process.pid, "RssAnon")
        figures.append(one)
        print(
            f"minute {minute + 1}: {one['broker_us']:.2f} us a message, {one['rate']:,.0f}/s, {one['anonymous_mb']:.1f} MB",
            flush=True,
        )
        time.sleep(max(0.0, began + pause - time.monotonic()))
    return figures


def report(head: dict[str, Any], cases: dict[str, dict[str, float]], minutes: list[dict[str, float]]) -> None:
    print("\n| | messages a second | broker us | generator us | p99 ms | rate to small | processor to small |")
    print("|---|---|---|---|---|---|---|")
    for name, of in cases.items():
        print(
            f"| {name} | {of['rate']:,.0f} | {of['broker_us']:.2f} | {of['generator_us']:.2f} | {of['p99_ms']:.2f} "
            f"| {of['rate_ratio']:.2f} | {of['processor_ratio']:.2f} |"
        )
    everything: dict[str, Any] = {"machine": head, "cases": cases, "minutes": minutes}
    if minutes:
        third = max(1, len(minutes) // 3)
        first, last = (
            statistics.median(one["broker_us"] for one in part) for part in (minutes[:third], minutes[-third:])
        )
        everything["last third to first"] = last / first
        print(f"\nover {len(minutes)} minutes: {first:.2f} us a message, then {last:.2f}: {last / first:.2f}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(everything, indent=2) + "\n")


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each case and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--minutes", type=int, default=5, help="of the run by minute; 60 for the hour")
    parser.add_argument("--quick", action="store_true", help="two short rounds, three minutes that do not last one")
    options = parser.parse_args(argv)
    pause = MINUTE_SECONDS
    if options.quick:
        options.rounds, options.seconds, options.minutes, pause = 2, 1.0, 3, 0.0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * options.connections)), hard))
    head = about(rounds=options.rounds, seconds=options.seconds, minutes=options.minutes)
    with tempfile.TemporaryDirectory(prefix="orbitmq-growth-") as base:
        folder = Path(base)
        load = Load(compile_c(folder, "load"))
        with start_ours(folder / "ours", sync=False, heap="") as broker:
            cases = compare(broker, load, options)
            minutes = by_minute(broker, load, options.minutes, options.seconds, pause)
    report(head, cases, minutes)
