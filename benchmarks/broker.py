"""Our broker beside Apache's, in the same run: `python -m benchmarks broker [--quick] [--seconds S] [--rounds N] [--heap SIZE]`.

    sends    connections x requests in flight on each, bodies of 1 KB and 100 B, JSON and binary headers,
             asynchronous and synchronous flush
    pulls    eight queues from the start, by batches of 32
    idle     from a send to the answer of a pull that was held for it
    memory   anonymous and all resident, at the end; and how long the start takes

Each broker has a name server of its own kind, fresh stores on the same disk, and its own defaults; Apache's gets --heap. Cells are
warmed up; then rounds alternate between the two, and medians count. Every message of a measured cell is read back afterwards: one
that was acknowledged and is not there, once and whole, ends the run. The load generator (load.c) takes a share of the same
cores, so compare ratios; how fast it could be, against a server that does nothing (null_server.c), is measured first.

Ours runs twice: as `make setup` installs it, and without the accelerator (accelerator/), in Python alone.

Without Java only ours is measured. Results: benchmarks/results/broker.json, and as a picture broker.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.interop import apache, java, orbit
from tests.interop.apache import write_properties
from tests.interop.processes import Process, free_port, killed_on_failure
from tests.interop.wire import register_now

from benchmarks.machine import about, compile_bytecode, compile_c, memory_mb, processor_seconds
from benchmarks.plot import bar_chart
from orbitmq.accelerated import SWITCH, compiled
from orbitmq.message.record import decode_records
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.transport.address import parse_address
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.transport.address import Address

RESULTS: Final = Path(__file__).parent / "results" / "broker.json"
APACHE_RELEASE: Final = "5.3.3"
BROKER_NAME: Final = "bench"
OURS: Final = "OrbitMQ"
IN_PYTHON: Final = "OrbitMQ in Python alone"
QUEUES: Final = 8
KB: Final = 1024
PULL_TOPIC: Final = "PullTopic"
PATIENCE_SECONDS: Final = 30.0
# What the interop tests add to keep their short-lived JVMs small; a server that lives does without.
_NOT_FOR_SERVERS: Final = ("-XX:TieredStopAtLevel", "-XX:+UseSerialGC", "-Xm", "-Xshare")
_NUMBER: Final = re.compile(rb"UNIQ_KEY\x017F00000100012A139A55([0-9A-F]{12})\x02")  # as load.c writes it


@dataclass(frozen=True, slots=True)
class Cell:
    connections: int
    in_flight: int
    body: int = KB
    mode: str = "send"
    sync: bool = False

    @property
    def name(self) -> str:
        extras = [
            *(["100 B"] if self.body < KB else []),
            *(["binary header"] if self.mode == "send-binary" else []),
            *(["sync flush"] if self.sync else []),
        ]
        return ", ".join([f"send {self.connections} x {self.in_flight}", *extras])


CELLS: Final = (
    Cell(1, 1),
    Cell(16, 1),
    Cell(64, 1),
    Cell(4, 32),
    Cell(64, 1, mode="send-binary"),
    Cell(4, 32, mode="send-binary"),
    Cell(64, 1, body=100),
    Cell(4, 32, body=100),
    Cell(64, 1, sync=True),
    Cell(4, 32, sync=True),
)


Starter = Callable[..., AbstractContextManager["Contender"]]


@dataclass(slots=True)
class Contender:
    """A running broker, and what it reached: cell -> figure -> one value a round."""

    name: str
    address: Address
    process: Process
    start_seconds: float
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def note(self, cell: str, **values: float) -> None:
        of_cell = self.figures.setdefault(cell, {})
        for figure, value in values.items():
            of_cell.setdefault(figure, []).append(value)


class Load:
    """The load generator, one run of it."""

    def __init__(self, program: Path, *before: str) -> None:
        """`before`: a command that runs it, such as taskset."""
        self._command = [*before, str(program)]

    def run(
        self,
        mode: str,
        address: Address,
        *arguments: object,
        behind: tuple[str, ...] = (),
        settle: float = 0.0,
        distinct: int = 0,
    ) -> dict[str, float]:
        """What it printed: msgs, errors, rate, p50, p99 and more. A busy broker may refuse some messages.

        `distinct`: how many messages there are, sent over and over; 0 for as many as are sent.
        """
        words = (address.port, *arguments)
        command = [*self._command, mode, address.host, *map(str, words), BROKER_NAME, *behind]
        environment = {**os.environ, "SETTLE": str(settle), "DISTINCT": str(distinct)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        printed = {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", done.stdout)}
        if not printed.get("msgs"):
            raise SystemExit(f"the load generator failed: {' '.join(command)}: {done.stdout}{done.stderr}")
        if done.returncode:
            print(f"{printed['errors']:.0f} errors: {' '.join(command)}: {done.stdout}{done.stderr}", file=sys.stderr)
        return printed


# ---- starting


@contextmanager
def start_ours(folder: Path, *, sync: bool, heap: str, name: str = OURS, accelerator: str = "1") -> Iterator[Contender]:
    name_server = orbit.start_name_server(folder / "nameserver")
    with _stopped(name_server.process):
        settings = {"flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 30}
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SWITCH, accelerator)
            broker = orbit.start_broker(folder / "broker", name_server.address, BROKER_NAME, settings)
        seconds = time.monotonic() - began
        with _stopped(broker.process):
            yield Contender(name, parse_address(broker.address), broker.process, seconds)


@contextmanager
def start_apaches(folder: Path, *, sync: bool, heap: str) -> Iterator[Contender]:
    build = java.build(APACHE_RELEASE)
    name_server = apache.start_name_server(build, folder / "nameserver")
    with _stopped(name_server.process):
        (folder / "broker").mkdir()
        port = free_port(-2, 1)
        properties = {
            "brokerClusterName": "bench",
            "brokerName": BROKER_NAME,
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": name_server.address,
            "storePathRootDir": folder / "broker" / "store",
            "storePathCommitLog": folder / "broker" / "store" / "commitlog",
            "flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
        }
        config = write_properties(folder / "broker" / "broker.conf", properties)
        command = build.command(
            "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config), home=folder / "broker" / "home"
        )
        kept = [word for word in command[1:] if not word.startswith(_NOT_FOR_SERVERS)]
        options = ["-server", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"]
        began = time.monotonic()
        process = Process([command[0], *options, *kept], folder / "broker" / "broker.out")
        with killed_on_failure(process):
            process.wait_for_line("boot success")
            seconds = time.monotonic() - began
            register_now(f"127.0.0.1:{port}")
        with _stopped(process):
            yield Contender(f"Apache {APACHE_RELEASE}", parse_address(f"127.0.0.1:{port}"), process, seconds)


@contextmanager
def _stopped(process: Process) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop()


def create_topic(address: Address, topic: str, queues: int = QUEUES) -> None:
    header = CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    answer = run_loop(_ask(address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
    if answer.code:
        raise SystemExit(f"cannot create {topic}: {answer.remark}")


async def _ask(address: Address, command: Command) -> Command:
    pool = Pool()
    try:
        return await pool.call(address, command, PATIENCE_SECONDS)
    finally:
        await pool.close()


# ---- measuring


def run_cell(contender: Contender, load: Load, cell: Cell, topic: str, seconds: float, *, counts: bool) -> None:
    create_topic(contender.address, topic)
    before = processor_seconds(contender.process.pid)
    printed = load.run(
        cell.mode, contender.address, topic, QUEUES, cell.connections, cell.in_flight, cell.body, seconds
    )
    used = processor_seconds(contender.process.pid) - before
    if counts:
        check_all_there(contender, topic, int(printed["msgs"]), int(printed["errors"]), cell.body)
        contender.note(
            cell.name,
            errors=printed["errors"],
            rate=printed["rate"],
            p50_ms=printed["p50"],
            p99_ms=printed["p99"],
            processor_us=1e6 * used / printed["msgs"],
        )


def run_pull_cell(contender: Contender, load: Load, group: str, seconds: float, *, counts: bool) -> None:
    before = processor_seconds(contender.process.pid)
    printed = load.run("pull", contender.address, PULL_TOPIC, QUEUES, QUEUES, group, 32, seconds)
    used = processor_seconds(contender.process.pid) - before
    if counts:
        contender.note(
            "pull 8 queues by 32",
            rate=printed["rate"],
            p50_ms=printed["p50"],
            p99_ms=printed["p99"],
            processor_us=1e6 * used / printed["msgs"],
        )


def check_all_there(contender: Contender, topic: str, acknowledged: int, refused: int, body_bytes: int) -> None:
    """Every acknowledged message is in its queue, once and whole; of the refused ones, any may be."""
    numbers = run_loop(_read_back(contender.address, topic, body_bytes))
    there = set(numbers)
    sent = set(range(acknowledged + refused))
    if len(there) != len(numbers) or not there <= sent or len(sent - there) > refused:
        missing = sorted(sent - there)
        raise SystemExit(
            f"{contender.name} acknowledged {acknowledged} messages of {topic}, refused {refused} and gave back "
            f"{len(numbers)}, {len(there)} of them different; missing are {missing[:10]}{'...' if missing[10:] else ''}"
        )


async def _read_back(address: Address, topic: str, body_bytes: int) -> list[int]:
    """The numbers that load.c gave the messages. Every record is checked with its checksum on the way."""
    pool, numbers = Pool(), []
    expected = bytes(ord("a") + (i * 7 + i // 26) % 26 for i in range(body_bytes))  # as load.c fills it
    try:
        for queue_id in range(QUEUES):
            offset = 0
            while (answer := await pool.call(address, _pull(topic, queue_id, offset), PATIENCE_SECONDS)).code == 0:
                if {message.body for message in decode_records(answer.body)} != {expected}:
                    raise SystemExit(f"{topic}, queue {queue_id}: a body from offset {offset} on is not what was sent")
                numbers += [int(number, 16) for number in _NUMBER.findall(answer.body)]
                offset = int(answer.fields["nextBeginOffset"])
    finally:
        await pool.close()
    return numbers


def _pull(topic: str, queue_id: int, offset: int, hold_ms: int = 0) -> Command:
    header = PullMessage(
        consumer_group="bench_reader",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
        suspend_timeout_millis=hold_ms,
        subscription="*",
        expression_type="TAG",
    )
    return request(RequestCode.PULL_MESSAGE, header)


async def arrival_times_ms(address: Address, topic: str, messages: int) -> list[float]:
    """From a send to the answer of the pull that was held for it, one message at a time."""
    reader, writer, times = Pool(), Pool(), []
    try:
        for offset in range(messages):
            held = asyncio.ensure_future(reader.call(address, _pull(topic, 0, offset, 15_000), PATIENCE_SECONDS))
            await asyncio.sleep(0.005)  # until it is held
            header = SendMessageV2(
                producer_group="bench",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=QUEUES,
                queue_id=0,
                sys_flag=0,
                born_timestamp=int(time.time() * 1000),
                flag=0,
            )
            began = time.perf_counter()
            sent = writer.call(address, request(RequestCode.SEND_MESSAGE_V2, header, b"x" * KB), PATIENCE_SECONDS)
            answers = await asyncio.gather(held, sent)
            times.append(1000 * (time.perf_counter() - began))
            if any(answer.code for answer in answers):
                raise SystemExit(f"arrival of message {offset}: {answers}")
    finally:
        await reader.close()
        await writer.close()
    return times


def measure(contenders: list[Contender], load: Load, options: argparse.Namespace, *, sync: bool) -> None:
    cells = [cell for cell in CELLS if cell.sync is sync]
    for contender in contenders:
        for number, cell in enumerate(cells):
            run_cell(contender, load, cell, f"WarmUp-{number}", options.warm_up, counts=False)
        if not sync:
            create_topic(contender.address, PULL_TOPIC)
            load.run("send", contender.address, PULL_TOPIC, QUEUES, 4, 32, KB, options.fill)
            run_pull_cell(contender, load, "warm_up", options.seconds, counts=False)
    for turn in range(options.rounds):
        # Whoever goes second finds warmer caches: take turns.
        for contender in contenders if turn % 2 == 0 else contenders[::-1]:
            for number, cell in enumerate(cells):
                run_cell(contender, load, cell, f"Cell-{number}-{turn}", options.seconds, counts=True)
            if not sync:
                run_pull_cell(contender, load, f"group_{turn}", 4 * options.seconds, counts=True)
                topic = f"Idle-{turn}"
                create_topic(contender.address, topic)
                times = sorted(run_loop(arrival_times_ms(contender.address, topic, options.arrivals)))
                contender.note("arrival, idle", p50_ms=statistics.median(times), p99_ms=times[len(times) * 99 // 100])
    if not sync:
        for contender in contenders:
            contender.note("start, s", value=contender.start_seconds)
            contender.note("anonymous memory, MB", value=memory_mb(contender.process.pid, "RssAnon"))
            contender.note("resident memory, MB", value=memory_mb(contender.process.pid))


def measure_ceiling(folder: Path, load: Load, seconds: float) -> dict[str, float]:
    process = Process([str(compile_c(folder, "null_server"))], folder / "null_server.out")
    with _stopped(process):
        address = parse_address(process.wait_for_line("ready on ").split("ready on ", 1)[1])
        cells = [cell for cell in CELLS if not cell.sync]
        return {
            cell.name: load.run(cell.mode, address, "T", QUEUES, cell.connections, cell.in_flight, cell.body, seconds)[
                "rate"
            ]
            for cell in cells
        }


# ---- reporting


def report(contenders: list[Contender], ceiling: dict[str, float], head: dict[str, Any]) -> None:
    rounds: dict[str, dict[str, dict[str, list[float]]]] = {}
    for contender in contenders:  # one for each way of flushing
        rounds.setdefault(contender.name, {}).update(contender.figures)
    medians = {
        name: {
            cell: {figure: statistics.median(values) for figure, values in of_cell.items()}
            for cell, of_cell in cells.items()
        }
        for name, cells in rounds.items()
    }
    print_table(medians, ceiling)
    RESULTS.parent.mkdir(exist_ok=True)
    everything = {"machine": head, "generator's ceiling": ceiling, "medians": medians, "rounds": rounds}
    RESULTS.write_text(json.dumps(everything, indent=2) + "\n")
    rates = {
        cell: {name: cells[cell]["rate"] for name, cells in medians.items() if cell in cells}
        for cell, figures in next(iter(medians.values())).items()
        if "rate" in figures
    }
    bar_chart(RESULTS.with_suffix(".svg"), "messages a second, medians", rates)


def print_table(medians: dict[str, dict[str, dict[str, float]]], ceiling: dict[str, float]) -> None:
    """In Markdown, for docs/performance.md."""
    names = list(medians)
    for figure, title in (
        ("rate", "messages a second"),
        ("p50_ms", "median, ms"),
        ("p99_ms", "99th percentile, ms"),
        ("processor_us", "processor us a message"),
        ("value", "other"),
    ):
        compared = [f"{name} to Apache" for name in names[:-1]] if names[-1].startswith("Apache") else []
        ceiling_title = ["generator's ceiling"] if figure == "rate" else []
        print(f"| {' | '.join([title, *names, *compared, *ceiling_title])} |")
        print("|---" * (1 + len(names) + len(compared) + len(ceiling_title)) + "|")
        for cell, figures in medians[names[0]].items():
            if figure not in figures:
                continue
            values = [medians[name][cell][figure] for name in names if cell in medians[name]]
            texts = [f"{value:,.0f}" if figure == "rate" else f"{value:,.2f}" for value in values]
            if compared:
                whole = len(values) == len(names) and values[-1]
                texts += [f"{value / values[-1]:.2f}" if whole else "-" for value in values[:-1]]
            if figure == "rate":
                texts.append(f"{ceiling[cell]:,.0f}" if cell in ceiling else "-")
            print(f"| {cell} | {' | '.join(texts)} |")
        print()


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="4g", help="of Apache's broker")
    parser.add_argument("--quick", action="store_true", help="one round, a second for each cell, 1 GB of heap")
    options = parser.parse_args(argv)
    options.warm_up, options.fill, options.arrivals = 2 * options.seconds, 2 * options.seconds, 300
    if options.quick:
        options.rounds, options.seconds, options.heap = 1, 1.0, "1g"
        options.warm_up, options.fill, options.arrivals = 1.0, 1.0, 50
    head = about(
        java=f"-Xms{options.heap} -Xmx{options.heap} -XX:+UseG1GC", rounds=options.rounds, seconds=options.seconds
    )
    compile_bytecode()
    starters: list[Starter] = []
    if compiled("sends") is not None:
        starters.append(start_ours)
    starters.append(partial(start_ours, name=IN_PYTHON, accelerator="0"))
    if missing := java.missing_tools():
        print(f"only ours: {missing}", file=sys.stderr)
    else:
        starters.append(start_apaches)
    everyone: list[Contender] = []
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as base:
        folder = Path(base)
        load = Load(compile_c(folder, "load"))
        ceiling = measure_ceiling(folder, load, options.seconds)
        for sync in (False, True):
            with ExitStack() as stack:
                contenders = []
                for number, start in enumerate(starters):
                    place = folder / f"{'sync' if sync else 'async'}-{number}"
                    contenders.append(stack.enter_context(start(place, sync=sync, heap=options.heap)))
                everyone += contenders
                measure(contenders, load, options, sync=sync)
    report(everyone, ceiling, head)
