"""A million timer messages over an hour: `python -m benchmarks timers [--messages N]`.

    taken, messages/s        into the store and onto the wheel
    delivered, messages/s    off the wheel, while the hour passes second by second on a clock of our own
    anonymous MB             of the process before, with all of them waiting, at most while they are delivered, and with that written:
                             what is on disk is not in memory; what is delivered within one second waits there for the disk
    early, late              messages that came before their moment, or more than a second after it: 0 and 0

The broker lives in this process, and messages are put into it where a send request would put them: this is about the wheel,
not about sockets. Results: benchmarks/results/timers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.broker import settings
from orbitmq.broker.broker import Broker
from orbitmq.clock import ManualClock
from orbitmq.message.record import decode_records
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from orbitmq.broker.timers import Timers

RESULTS: Final = Path(__file__).parent / "results" / "timers.json"
TOPIC: Final = "Alarms"
SPAN_MS: Final = 3_600_000
BODY: Final = b"x" * 100
HOST: Final = b"\x7f\0\0\1\0\0\0\1"


@dataclass(frozen=True, slots=True)
class Figures:
    machine: str
    messages: int
    taken_per_second: int
    delivered_per_second: int
    anonymous_mb_before: float
    anonymous_mb_waiting: float
    anonymous_mb_most: float
    anonymous_mb_after: float
    early: int
    late: int


def anonymous_mb() -> float:
    """Memory that no file stands behind."""
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]
    return round(int(kilobytes) / 1024, 1)


async def catch_up(timers: Timers) -> None:
    while timers.turn() == 0:
        await asyncio.sleep(0)


async def measure(folder: Path, messages: int) -> Figures:
    clock, chance = ManualClock(), random.Random(7)
    start_ms = clock.now_ms()
    configuration = settings.load(None, {
        "bindAddress": "127.0.0.1", "listenPort": "0", "namesrvAddr": "", "storePathRootDir": str(folder),
        "mappedFileSizeCommitLog": str(256 << 20), "messageIndexEnable": "false", "osPageCacheBusyTimeOutMills": "600000",
    })  # fmt: skip
    async with Broker(configuration, clock=clock) as broker:
        state, before = broker.state, anonymous_mb()
        timers, store = state.timers, state.store
        assert timers is not None
        began = time.perf_counter()
        for number in range(messages):
            deliver_ms = start_ms + 1000 + chance.randrange(SPAN_MS)
            state.sending.put(TOPIC, 0, BODY, f"TIMER_DELIVER_MS\x01{deliver_ms}\x02", start_ms, HOST)
            if number % 1000 == 999:
                await asyncio.sleep(0)
                await catch_up(timers)
        await catch_up(timers)
        took = time.perf_counter() - began
        waiting = most = anonymous_mb()

        early = late = seen = 0
        began = time.perf_counter()
        while seen < messages:
            clock.advance(seconds=1)
            await asyncio.sleep(0)
            await catch_up(timers)
            store.dispatch()
            most = max(most, anonymous_mb())
            while True:
                found = store.read(TOPIC, 0, seen)
                if not found.buffers:
                    break
                for buffer in found.buffers:
                    for message in decode_records(buffer):
                        wait_ms = message.stored_at_ms - int(message.properties["TIMER_DELIVER_MS"])
                        early, late, seen = early + (wait_ms < 0), late + (wait_ms > 1000), seen + 1
        delivered = time.perf_counter() - began
        store.flush()
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        per_second = (round(messages / took), round(messages / delivered))
        return Figures(machine, messages, *per_second, before, waiting, most, anonymous_mb(), early, late)


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks timers", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args(argv).messages
    folder = Path(tempfile.mkdtemp(prefix="orbitmq-timers-"))
    try:
        figures = asdict(run_loop(measure(folder, messages)))
    finally:
        shutil.rmtree(folder)
    print(json.dumps(figures, indent=1))
    if messages >= 1_000_000:
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
