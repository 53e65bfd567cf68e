"""A slave whose connection breaks every second: `python -m benchmarks flapping [--seconds S] [--quick]`.

    steady      sends a second, median and 99th percentile with a slave that copies in peace: 16 connections, one in flight on each
    flapping    the same for five minutes while the slave's connections to its master are cut every second; sends that failed
    the same    afterwards the slave has everything, byte by byte

Ends with an error if a send failed, less than 70 % of the rate is left, or a byte differs. Results: benchmarks/results/flapping.json.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.faults.proxy import Proxy
from tests.interop import orbit
from tests.interop.processes import free_port

from benchmarks.machine import about, compile_c
from benchmarks.replicas import (
    Load,
    compare_logs,
    keep,
    options,
    start_master,
    start_slave,
    stopped,
    wait_until_copied,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_SHARE: Final = 0.7
EVERY_SECONDS: Final = 1.0
SENDERS: Final = ("send", 16, 1)
PROXY_HOST: Final = "127.0.0.2"


class Cuts:
    """A proxy before the port that the log is copied from, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.number = 0
        self.is_cutting = False
        self._proxy = Proxy(PROXY_HOST, port)
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        await self._proxy.start()
        while not self._over.is_set():
            await asyncio.sleep(EVERY_SECONDS)
            if self.is_cutting:
                self._proxy.cut()
                self.number += 1
        await self._proxy.close()

    @contextmanager
    def running(self) -> Iterator[Cuts]:
        self._thread.start()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop.close()


def run(argv: list[str]) -> None:
    chosen = options(argv, __doc__, seconds=300.0)
    seconds = chosen.seconds / 10 if chosen.quick else chosen.seconds
    figures: dict[str, Any] = {"machine": about(seconds=seconds)}
    with tempfile.TemporaryDirectory(prefix="orbitmq-flapping-") as base:
        folder = Path(base)
        program = compile_c(folder, "load")
        name_server = orbit.start_name_server(folder / "nameserver")
        ha_port = free_port()
        settings: dict[str, str | int] = {"brokerIP2": PROXY_HOST, "haListenPort": ha_port}
        try:
            with (
                stopped(start_master(folder, name_server.address, settings)) as master,
                Cuts(ha_port).running() as cuts,
                stopped(start_slave(folder, name_server.address)) as slave,
            ):
                load = Load(program, master.address)
                steady = load.run(*SENDERS, min(seconds, 20.0))
                wait_until_copied(master, slave)
                cuts.is_cutting = True
                flapping = load.run(*SENDERS, seconds)
                cuts.is_cutting = False
                wait_until_copied(master, slave)
                for when, said in (("steady", steady), ("flapping", flapping)):
                    figures[when] = {
                        "rate": said["rate"],
                        "p50_ms": said["p50"],
                        "p99_ms": said["p99"],
                        "failed": said["errors"],
                    }
                figures |= {
                    "cuts": cuts.number,
                    "share": round(flapping["rate"] / steady["rate"], 2),
                    "bytes_the_same": compare_logs(master, slave),
                }
        finally:
            name_server.process.kill()
    keep("flapping", figures, quick=chosen.quick)
    if figures["share"] < LEAST_SHARE or figures["flapping"]["failed"]:
        raise SystemExit(f"sends kept {figures['share']:.0%} of their rate, {figures['flapping']['failed']:.0f} failed")
