"""A broker on a machine that can be broken from outside: `python -m tests.faults.machine SWITCHES VARIANTS broker ...`.

The switches are a small file that the supervisor replaces: the disk is full, no sync succeeds, the clock is wrong by so much. At
SIGUSR1 the machine loses its power: what was not synced is gone, or any part of it, and the process with it. VARIANTS names
promises that this build breaks on purpose (broken.py); usually there are none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.broker import Broker
from orbitmq.cli import broker_server
from orbitmq.cli.entry import main
from tests.storage.faulty_disk import Faults, FaultyDisk

if TYPE_CHECKING:
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.open_files import FileLock, MappedFile, PlainFile

_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Switches:
    disk_is_full: bool = False
    sync_fails: bool = False
    skew_ms: int = 0
    power_seed: int = 0  # of which pages survive a power cut; 0: none does

    def save(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)


def load_switches(path: Path) -> Switches:
    return Switches(**json.loads(path.read_text()))


class SkewedClock:
    skew_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.skew_ms


class MachineDisk(FaultyDisk):
    """Knows how often the machine lost its power, and stands still for everybody else once it does."""

    def __init__(self, root: Path, boots: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(root)
        self._boots = boots

    def page_cache_id(self, path: Path) -> str:
        """A killed process leaves its writes to the system; only a power cut takes them."""
        return f"boot {self._boots.read_text() if self._boots.exists() else '0'}"

    def cut_power(self, pages: Random | None) -> None:
        self.syncing.acquire()  # for good
        self.crash(pages)
        self._boots.write_text(str(int(self._boots.read_text() if self._boots.exists() else "0") + 1))
        os.kill(os.getpid(), signal.SIGKILL)

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        with self.syncing:
            return super().allocate(path, size, reserve=reserve)

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        with self.syncing:
            return super().create_sparse(path, size)

    def replace(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        with self.syncing:
            super().replace(path, data, keep=keep)

    def rename(self, old: Path, new: Path) -> None:
        with self.syncing:
            super().rename(old, new)

    def remove(self, path: Path) -> None:
        with self.syncing:
            super().remove(path)

    def sync_directory(self, path: Path) -> None:
        with self.syncing:
            super().sync_directory(path)

    def lock(self, path: Path, content: bytes) -> FileLock | None:
        with self.syncing:
            return super().lock(path, content)


class Machine:
    def __init__(self, switches: Path) -> None:
        self._path = switches
        self._changed_ns = 0
        self._switches = Switches()
        self._clock = SkewedClock()
        self._disk: MachineDisk | None = None

    def broker(self, configuration: BrokerConfiguration) -> Broker:
        root = configuration.settings.storage_config().directory
        self._disk = MachineDisk(root, self._path.with_suffix(".boots"))
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()
        # The handler runs in the thread of the event loop: while power fails, nobody is answered any more.
        signal.signal(signal.SIGUSR1, self._lose_power)
        return Broker(configuration, disk=self._disk, clock=self._clock)

    def _lose_power(self, *_: Any) -> None:
        assert self._disk is not None
        seed = load_switches(self._path).power_seed
        self._disk.cut_power(Random(seed) if seed else None)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns == self._changed_ns or self._disk is None:
            return
        self._changed_ns = changed_ns
        switches = load_switches(self._path)
        self._clock.skew_ms = switches.skew_ms
        full = switches.disk_is_full
        self._disk.faults = Faults(
            space_left=0 if full else None, used_percent=100 if full else None, sync_fails=switches.sync_fails
        )


if __name__ == "__main__":
    from tests.faults.broken import VARIANTS

    machine = Machine(Path(sys.argv.pop(1)))
    for variant in filter(None, sys.argv.pop(1).split(",")):
        VARIANTS[variant]()
    vars(broker_server)["Broker"] = partial(machine.broker)
    main()
