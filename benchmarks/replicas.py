"""What the benchmarks of replication and overload share: a master, a slave through a proxy that can be cut, and their figures."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop import orbit, wire
from tests.interop.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.interop.apache import Broker

RESULTS: Final = Path(__file__).parent / "results"
BROKER_NAME: Final = "bench"
TOPIC: Final = "Load"
QUEUES: Final = 8
RUNTIME_INFO: Final = 28
_PATIENCE_SECONDS: Final = 60.0
_LOG_FILE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Load:
    """The load generator (load.c), compiled, and the broker it sends to."""

    program: Path
    address: str
    body_bytes: int = 1024

    def start(
        self, mode: str, connections: int, in_flight: int, seconds: float, *more: object
    ) -> subprocess.Popen[str]:
        host, _, port = self.address.rpartition(":")
        words = (port, TOPIC, QUEUES, connections, in_flight, self.body_bytes, seconds, BROKER_NAME, *more)
        return subprocess.Popen([self.program, mode, host, *map(str, words)], stdout=subprocess.PIPE, text=True)

    def run(self, mode: str, connections: int, in_flight: int, seconds: float, *more: object) -> dict[str, float]:
        return printed(self.start(mode, connections, in_flight, seconds, *more))


def printed(generator: subprocess.Popen[str]) -> dict[str, float]:
    """What the generator says in the end: msgs, errors, rate, p50, p99 and more."""
    said, _ = generator.communicate()
    figures = {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", said.partition("\n")[0])}
    if "msgs" not in figures:
        raise SystemExit(f"the load generator failed: {said}")
    return figures


def start_master(folder: Path, name_server: str, settings: Mapping[str, str | int] | None = None) -> Broker:
    own = {"mappedFileSizeCommitLog": _LOG_FILE_BYTES, **(settings or {})}
    master = orbit.start_broker(folder / "master", name_server, BROKER_NAME, own)
    create_topic(master.address)
    return master


def start_slave(folder: Path, name_server: str) -> Broker:
    settings: dict[str, str | int] = {"brokerId": 1, "brokerRole": "SLAVE", "mappedFileSizeCommitLog": _LOG_FILE_BYTES}
    return orbit.start_broker(folder / "slave", name_server, BROKER_NAME, settings, free_port(-2, 1))


def create_topic(address: str) -> None:
    from benchmarks.broker import create_topic as create
    from orbitmq.transport.address import parse_address

    create(parse_address(address), TOPIC)


def log_end(broker: Broker) -> int:
    return int(json.loads(wire.ask(broker.address, RUNTIME_INFO).body)["table"]["commitLogMaxOffset"])


def wait_until_copied(master: Broker, slave: Broker) -> None:
    """Nobody sends any more."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while log_end(slave) < log_end(master):
        if time.monotonic() > deadline:
            raise SystemExit(f"the slave has {log_end(slave)} of {log_end(master)} bytes and gets no more")
        time.sleep(0.1)


def compare_logs(master: Broker, slave: Broker) -> int:
    """How many bytes are the same; ends the run if one is not."""
    end, compared = log_end(master), 0
    for file in sorted((master.folder / "store" / "commitlog").glob("0*")):
        left = min(_LOG_FILE_BYTES, end - int(file.name))  # 0 and below: made ready for what comes
        if left <= 0:
            break
        with file.open("rb") as ours, (slave.folder / "store" / "commitlog" / file.name).open("rb") as copied:
            while left > 0:
                piece = ours.read(min(left, 1 << 24))
                if piece != copied.read(len(piece)):
                    raise SystemExit(f"the slave's {file.name} differs before {ours.tell()}")
                compared, left = compared + len(piece), left - len(piece)
    return compared


def options(argv: list[str], doc: str | None, **defaults: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--quick", action="store_true", help="a tenth of it; keeps no results")
    return parser.parse_args(argv)


def keep(name: str, figures: dict[str, Any], *, quick: bool) -> None:
    print(json.dumps(figures, indent=1))
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


@contextmanager
def stopped(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker
    finally:
        broker.process.kill()
