"""A hundred thousand undecided transactions: `python -m benchmarks transactions [--messages N]`.

    send ms, idle      median and 99th of plain sends with nothing else to do
    send ms, asking    the same while the broker asks a producer about all of them
    asked              questions the producer got in the round, and how long it took
    rebuild seconds    a start with all of them undecided; anonymous MB then

Broker and clients share one process and its processor. Results: benchmarks/results/transactions.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.timers import anonymous_mb
from orbitmq.broker import settings
from orbitmq.broker.broker import Broker
from orbitmq.clock import ManualClock
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

RESULTS: Final = Path(__file__).parent / "results" / "transactions.json"
SEND, HEART_BEAT, CHECK_STATE = 310, 34, 39
HOST: Final = b"\x7f\0\0\1\0\0\0\1"


@dataclass(frozen=True, slots=True)
class Figures:
    machine: str
    messages: int
    idle_send_ms: tuple[float, float]
    asking_send_ms: tuple[float, float]
    asked: int
    round_seconds: float
    rebuild_seconds: float
    anonymous_mb: float


async def sends(connection: Connection, until: asyncio.Event | None, count: int) -> tuple[float, float]:
    """Median and 99th percentile, in ms, of sends one after the other."""
    took: list[float] = []
    while len(took) < count or (until is not None and not until.is_set()):
        header = SendMessageV2(
            producer_group="P", topic="Plain", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=0, flag=0,
        )  # fmt: skip
        began = time.perf_counter()
        answer = await connection.start_call(Command(SEND, fields=header.to_fields(), body=b"x" * 100), 60.0)
        assert answer.code == 0, answer
        took.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(took), 2), round(statistics.quantiles(took, n=100)[98], 2)


async def measure(folder: Path, messages: int) -> Figures:
    clock = ManualClock()
    configuration = settings.load(None, {
        "bindAddress": "127.0.0.1", "listenPort": "0", "namesrvAddr": "", "storePathRootDir": str(folder),
        "mappedFileSizeCommitLog": str(256 << 20), "osPageCacheBusyTimeOutMills": "600000",
        "transactionCheckInterval": "86400000",
    })  # fmt: skip
    async with Broker(configuration, clock=clock) as broker:
        for number in range(messages):
            text = f"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01{number}\x02"
            broker.state.sending.put("Pay", 0, b"x" * 100, text, 0, HOST, 0, 4)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        asked = 0

        async def count(request: Command, connection: Connection) -> None:
            nonlocal asked
            asked += 1

        pool, producers = Pool(), Pool({CHECK_STATE: count})
        assert broker.address is not None
        connection = await pool.connection(broker.address)
        beat = {"clientID": "p", "consumerDataSet": [], "producerDataSet": [{"groupName": "P"}]}
        producer = await producers.connection(broker.address)
        await producer.start_call(Command(HEART_BEAT, body=json.dumps(beat).encode()), 60.0)
        idle = await sends(connection, None, 2000)
        clock.advance(minutes=1)
        over = asyncio.Event()
        sending = asyncio.create_task(sends(connection, over, 10))
        began = time.perf_counter()
        await broker.state.half_messages.check_round()
        took = time.perf_counter() - began
        over.set()
        asking = await sending
        while asked < messages:
            await asyncio.sleep(0.01)
        await pool.close()
        await producers.close()
    began = time.perf_counter()
    async with Broker(configuration, clock=clock) as broker:
        rebuilt = time.perf_counter() - began
        assert len(broker.state.half_messages) == messages
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        return Figures(machine, messages, idle, asking, asked, round(took, 2), round(rebuilt, 2), anonymous_mb())


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks transactions", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    messages = parser.parse_args(argv).messages
    folder = Path(tempfile.mkdtemp(prefix="orbitmq-transactions-"))
    try:
        figures = asdict(run_loop(measure(folder, messages)))
    finally:
        shutil.rmtree(folder)
    print(json.dumps(figures, indent=1))
    if messages >= 100_000:
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
