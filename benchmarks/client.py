"""Our client on one broker: `python -m benchmarks client [--name-server HOST:PORT] [--broker apache|orbit] [--seconds S]`.

    sends a second, bodies of 1 KB: one caller that awaits each; 64 callers; 256 in flight; batches of 32
    messages consumed a second by a handler that does nothing: one by one, and by batches of 32

Without --name-server it starts Apache's 5.3.3 broker, or ours with --broker orbit. Client and broker share the machine's cores,
so compare ratios. Results: benchmarks/results/client.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orbitmq as mq
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RESULTS: Final = Path(__file__).parent / "results" / "client.json"
BODY: Final = b"x" * 1024
BATCH: Final = 32


async def send_rate(producer: mq.Producer, topic: str, callers: int, seconds: float) -> float:
    """Callers that each await a send before the next."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    sent = 0

    async def call() -> None:
        nonlocal sent
        while loop.time() < end:
            await producer.send(topic, BODY)
            sent += 1

    began = loop.time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return sent / (loop.time() - began)


async def batch_rate(producer: mq.Producer, topic: str, callers: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    sent = 0
    bodies = [BODY] * BATCH

    async def call() -> None:
        nonlocal sent
        while loop.time() < end:
            await producer.send_batch(topic, bodies)
            sent += BATCH

    began = loop.time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return sent / (loop.time() - began)


async def consume_rate(client: mq.Client, topic: str, group: str, count: int, batch_size: int) -> float:
    """From the first message handled to the last of `count`."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    handled = 0
    began = 0.0

    async def one(message: mq.ReceivedMessage) -> None:
        nonlocal handled, began
        if not handled:
            began = loop.time()
        handled += 1
        if handled >= count:
            done.set()

    async def many(messages: list[mq.ReceivedMessage]) -> None:
        nonlocal handled, began
        if not handled:
            began = loop.time()
        handled += len(messages)
        if handled >= count:
            done.set()

    handler: Callable[..., Awaitable[None]] = one if batch_size == 1 else many
    async with client.consumer(topic, group=group, start="earliest", handler=handler, batch_size=batch_size):
        await done.wait()
        ended = loop.time()
    return handled / (ended - began)


async def measure_ours(name_server: str, topic: str, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    stamp = int(time.time())
    async with mq.connect(name_server) as client, client.producer("bench", timeout=10) as producer:
        await producer.send(topic, BODY)
        await send_rate(producer, topic, 64, seconds / 4)  # warm up both sides
        figures["1 caller"] = await send_rate(producer, topic, 1, seconds)
        figures["64 callers"] = await send_rate(producer, topic, 64, seconds)
        figures["256 in flight"] = await send_rate(producer, topic, 256, seconds)
        figures["batches of 32"] = await batch_rate(producer, topic, 8, seconds)
        count = 0
        async with client.pull_consumer("bench-count") as reader:
            for queue in await reader.queues(topic):
                count += await reader.max_offset(queue) - await reader.min_offset(queue)
        count = min(count, 200_000)
        figures["consume one by one"] = await consume_rate(client, topic, f"bench-{stamp}-1", count, 1)
        figures["consume by 32"] = await consume_rate(client, topic, f"bench-{stamp}-32", count, BATCH)
    return figures


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks client", description=__doc__.partition("\n")[0])
    parser.add_argument("--name-server", default="")
    parser.add_argument("--broker", choices=("apache", "orbit"), default="apache")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        name_server = options.name_server or _start_broker(stack, options.broker)
        figures = run_loop(measure_ours(name_server, "BenchmarkClient", options.seconds))
    for cell, rate in figures.items():
        print(f"{cell:20} {rate:10,.0f} a second")
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "broker": options.name_server or options.broker,
        "ours": {cell: round(rate) for cell, rate in figures.items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def _start_broker(stack: ExitStack, kind: str) -> str:
    from tests.interop import apache, java, orbit

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orbitmq-bench-")))
    name_server = orbit.start_name_server(folder / "nameserver")
    stack.callback(name_server.process.kill)
    if kind == "orbit":
        broker = orbit.start_broker(folder / "broker", name_server.address)
    else:
        reason = java.missing_tools()
        if reason is not None:
            sys.exit(f"{reason}; or measure on ours with --broker orbit")
        settings = {"mappedFileSizeCommitLog": 1 << 28, "sendMessageThreadPoolNums": 4}
        plan = apache.BrokerPlan(name="bench", cluster="bench", name_servers=[name_server.address], settings=settings)
        broker = apache.start_broker(java.build("5.3.3"), folder / "broker", plan)
    stack.callback(broker.process.kill)
    return name_server.address
