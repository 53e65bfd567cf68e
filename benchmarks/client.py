"""Our client on one broker: `python -m benchmarks client [--name-server HOST:PORT] [--broker apache|orbit] [--quick] [--cpp-site DIR]`.

    sends a second, bodies of 1 KB: one caller that awaits each; 64 callers; 256 in flight; batches of 32
    messages consumed a second by a handler that does nothing: one by one, and by batches of 32

Without --name-server it starts Apache's 5.3.3 broker, or ours with --broker orbit or without Java. Beside ours, on the same broker and one after
the other: Apache's Java client, and with --cpp-site the PyPI package of the C++ client (`pip install --no-deps --target DIR
rocketmq==0.4.4`). All share the machine's cores with the broker, so compare ratios. Beside each rate: the microseconds of CPU that the
client's process spent on a message, which a busy machine changes less. Results: benchmarks/results/client.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.interop import apache, java, orbit

import orbitmq as mq
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RESULTS: Final = Path(__file__).parent / "results" / "client.json"
BODY: Final = b"x" * 1024
BATCH: Final = 32
CONSUMED: Final = 100_000  # messages, of those sent before
OUR_TOPIC: Final = "BenchmarkClient"  # which everybody consumes
QUICK_CONSUMED: Final = 20_000
QUICK_SECONDS: Final = 1.0
WARM_UP_SECONDS: Final = 3.0
APACHE_RELEASE: Final = "5.3.3"
LIMIT_SECONDS: Final = 120  # for each of the other clients


class Cell(NamedTuple):
    """What one client did in one kind of work."""

    rate: float  # messages a second
    cpu_us: float  # of the client's process, for a message

    @classmethod
    def since(cls, count: int, began: float, cpu: float) -> Cell:
        """`began` and `cpu` as perf_counter and process_time had them."""
        return cls(count / (time.perf_counter() - began), (time.process_time() - cpu) / count * 1e6)


async def send_rate(producer: mq.Producer, topic: str, callers: int, seconds: float) -> Cell:
    """Callers that each await a send before the next."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    sent = 0

    async def call() -> None:
        nonlocal sent
        while loop.time() < end:
            await producer.send(topic, BODY)
            sent += 1

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return Cell.since(sent, began, cpu)


async def batch_rate(producer: mq.Producer, topic: str, callers: int, seconds: float) -> Cell:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    sent = 0
    bodies = [BODY] * BATCH

    async def call() -> None:
        nonlocal sent
        while loop.time() < end:
            await producer.send_batch(topic, bodies)
            sent += BATCH

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return Cell.since(sent, began, cpu)


async def consume_rate(client: mq.Client, topic: str, group: str, count: int, batch_size: int) -> Cell:
    """From the first message handled to the last of `count`."""
    done = asyncio.Event()
    handled = 0
    began = cpu = 0.0

    async def one(message: mq.ReceivedMessage) -> None:
        nonlocal handled, began, cpu
        if not handled:
            began, cpu = time.perf_counter(), time.process_time()
        handled += 1
        if handled >= count:
            done.set()

    async def many(messages: list[mq.ReceivedMessage]) -> None:
        nonlocal handled, began, cpu
        if not handled:
            began, cpu = time.perf_counter(), time.process_time()
        handled += len(messages)
        if handled >= count:
            done.set()

    handler: Callable[..., Awaitable[None]] = one if batch_size == 1 else many
    async with client.consumer(topic, group=group, start="earliest", handler=handler, batch_size=batch_size):
        await done.wait()
        return Cell.since(handled, began, cpu)


async def measure_ours(name_server: str, topic: str, seconds: float, count: int) -> dict[str, Cell]:
    figures: dict[str, Cell] = {}
    stamp = int(time.time())
    async with mq.connect(name_server) as client, client.producer("bench", timeout=10) as producer:
        await producer.send(topic, BODY)
        await send_rate(producer, topic, 64, max(seconds / 4, WARM_UP_SECONDS))  # the broker's compilers, too
        figures["1 caller"] = await send_rate(producer, topic, 1, seconds)
        figures["64 callers"] = await send_rate(producer, topic, 64, seconds)
        figures["256 in flight"] = await send_rate(producer, topic, 256, seconds)
        figures["batches of 32"] = await batch_rate(producer, topic, 8, seconds)
        while producer.stats.sent_bytes < count * len(BODY):  # enough to consume
            await batch_rate(producer, topic, 8, 0.5)
        figures["consume one by one"] = await consume_rate(client, topic, f"bench-{stamp}-1", count, 1)
        figures["consume by 32"] = await consume_rate(client, topic, f"bench-{stamp}-32", count, BATCH)
    return figures


def measure_java(name_server: str, topic: str, seconds: float, count: int, folder: Path) -> dict[str, Cell]:
    """Apache's client, compiled from ClientLoad.java beside this file, in a JVM with its usual compilers and 512 MB."""
    built = java.build(APACHE_RELEASE)
    source = Path(__file__).with_name("ClientLoad.java")
    subprocess.run(["javac", "-d", str(folder), "-cp", built.class_path, str(source)], check=True)
    command = built.command(
        "ClientLoad", name_server, topic, str(seconds), str(count), OUR_TOPIC, home=folder / "home", heap_mb=512
    )
    command = [part for part in command if not part.startswith(("-XX:TieredStopAtLevel", "-XX:+UseSerialGC"))]
    at = command.index("-cp") + 1
    command[at] = f"{folder}:{command[at]}"
    return _printed(command)


def measure_cpp(name_server: str, topic: str, seconds: float, count: int, site: str) -> dict[str, Cell]:
    """The C++ client of PyPI, in a process of its own."""
    script = Path(__file__).with_name("client_cpp.py")
    command = [sys.executable, str(script), name_server, topic, str(seconds), str(count), OUR_TOPIC]
    return _printed(command, {"PYTHONPATH": site})


def _printed(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Cell]:
    """What it printed, even if it crashed or had to be stopped in the middle."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    try:
        printed, errors = child.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        printed, errors = child.communicate()
        errors += f"\nstopped after {LIMIT_SECONDS} s"
    if child.returncode != 0:
        print(f"{command[0]} ended with {child.returncode}: {errors[-500:]}", file=sys.stderr)
    lines = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return {cell: Cell(float(rate), float(cpu_us)) for cell, rate, cpu_us in lines}


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks client", description=__doc__.partition("\n")[0])
    parser.add_argument("--name-server", default="")
    parser.add_argument("--broker", choices=("apache", "orbit"), default="apache")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each cell of sends")
    parser.add_argument("--quick", action="store_true", help="a second a cell, fewer messages: to see that it works")
    parser.add_argument("--cpp-site", default="", help="folder that holds the package rocketmq 0.4.4")
    options = parser.parse_args(argv)
    seconds, count = (QUICK_SECONDS, QUICK_CONSUMED) if options.quick else (options.seconds, CONSUMED)
    figures: dict[str, dict[str, Cell]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orbitmq-bench-")))
        name_server = options.name_server or _start_broker(stack, options.broker, folder)
        figures["ours"] = run_loop(measure_ours(name_server, OUR_TOPIC, seconds, count))
        if java.missing_tools() is None:
            figures["java"] = measure_java(name_server, "BenchmarkJava", seconds, count, folder)
        if options.cpp_site:
            figures["cpp"] = measure_cpp(name_server, "BenchmarkJava", seconds, count, options.cpp_site)
    _print_table(figures)
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load average": os.getloadavg()[0],
        "broker": options.name_server or options.broker,
        "quick": options.quick,
        **{name: {cell: round(found.rate) for cell, found in cells.items()} for name, cells in figures.items()},
        "cpu us a message": {
            name: {cell: round(found.cpu_us, 1) for cell, found in cells.items()} for name, cells in figures.items()
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def _print_table(figures: dict[str, dict[str, Cell]]) -> None:
    print(f"{'a second (CPU us each)':24}" + "".join(f"{name:>20}" for name in figures))
    for cell in figures["ours"]:
        found = (figures[name].get(cell) for name in figures)
        texts = (f"{one.rate:,.0f} ({one.cpu_us:.1f})" if one is not None else "-" for one in found)
        print(f"{cell:24}" + "".join(f"{text:>20}" for text in texts))


def _start_broker(stack: ExitStack, kind: str, folder: Path) -> str:
    name_server = orbit.start_name_server(folder / "nameserver")
    stack.callback(name_server.process.kill)
    if kind == "orbit" or java.missing_tools() is not None:
        broker = orbit.start_broker(folder / "broker", name_server.address)
    else:
        settings = {"mappedFileSizeCommitLog": 1 << 28, "sendMessageThreadPoolNums": 4}
        plan = apache.BrokerPlan(name="bench", cluster="bench", name_servers=[name_server.address], settings=settings)
        broker = apache.start_broker(java.build(APACHE_RELEASE), folder / "broker", plan)
    stack.callback(broker.process.kill)
    return name_server.address
