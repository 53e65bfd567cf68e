"""A cluster for tests: a name server in this process, and every broker a process of its own, so that one can be killed.

    with Cluster(masters=2, slaves=1) as cluster:
        ...  # connect to cluster.address
        cluster["a"].kill()
        cluster["a"].start()

Masters are called a, b, c, ..., the first slave of a is a-1. Ports are free ones and folders temporary, so tests may run side by side.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final, Self

from orbitmq.errors import OrbitError
from orbitmq.nameserver.server import NameServer
from orbitmq.testing.clock import MovableClock
from orbitmq.testing.contents import Contents
from orbitmq.testing.loop_thread import PATIENCE_SECONDS, LoopThread
from orbitmq.testing.small_settings import broker_configuration, name_server_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST: Final = len(ascii_lowercase)
_IN_USE: Final = "is in use"


class ClusterBroker:
    """One broker. `kill` is kill -9: nothing is saved, nobody is told. `stop` ends it as an operator would."""

    def __init__(self, cluster: Cluster, name: str, broker_id: int, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name  # of the broker: its slaves have the same
        self.broker_id = broker_id  # 0: a master
        self.address = ""
        self.folder = folder  # its store; there as long as the cluster is
        self._cluster = cluster
        self._settings = dict(settings)
        self._process: subprocess.Popen[str] | None = None
        self._orders = threading.Lock()

    @property
    def title(self) -> str:
        return f"{self.name}-{self.broker_id}" if self.broker_id else self.name

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again on what it had stored: at its former address, unless somebody else has that now."""
        if self.is_running:
            raise OrbitError(f"broker {self.title} is running already")
        port = self.address.rpartition(":")[2] or "0"
        answer = self._launch(port)
        if port != "0" and _IN_USE in answer.get("error", ""):
            answer = self._launch("0")
        if "address" not in answer:
            raise OrbitError(f"broker {self.title} did not start: {answer.get('error', 'it said nothing')}")
        self.address = answer["address"]

    def kill(self) -> None:
        """kill -9."""
        self._running().kill()
        self._reap()

    def stop(self) -> None:
        """In order: it takes its leave of the name server and closes its store."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.close()
        self._reap()

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing is answered, until `resume`."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def refuse_sends(self, reason: str = "refused by the test") -> None:
        """Answer every send with SYSTEM_BUSY, until `accept_sends`."""
        self._order({"refuse_sends": reason})

    def accept_sends(self) -> None:
        self._order({"refuse_sends": ""})

    def drop_connections(self) -> None:
        """Cut every connection to it, slaves' included. They may come back at once."""
        self._order({"drop_connections": True})

    def advance_clock(self, ms: int) -> None:
        self._order({"advance_ms": ms})

    def _launch(self, port: str) -> dict[str, str]:
        role = {"brokerId": str(self.broker_id), "brokerName": self.name}
        if self.broker_id:
            role |= {"brokerRole": "SLAVE", "slaveReadEnable": "true"}
        settings = {**role, **self._settings, "namesrvAddr": self._cluster.address, "listenPort": port}
        arguments = [str(self.folder), json.dumps(settings), str(self._cluster.clock.ahead_ms)]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own module
            [sys.executable, "-m", "orbitmq.testing.broker_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test run, which then stops its brokers
        )
        answer = self._answer()
        if "address" not in answer:
            self._process.kill()
            self._reap()
        return answer

    def _order(self, order: Mapping[str, object]) -> None:
        process = self._running()
        assert process.stdin is not None
        with self._orders:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            self._answer()

    def _answer(self) -> dict[str, str]:
        """One line of it; nothing if it ends, or says nothing for too long and is killed."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        found: dict[str, str] = json.loads(line or "{}")
        return found

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            raise OrbitError(f"broker {self.title} is not running", hint="its `start` starts it again")
        return self._process

    def _reap(self) -> None:
        process = self._process
        assert process is not None
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # nobody reads what was not written yet
                pipe.close()
        self._process = None


class ClusterClock(MovableClock):
    """The time of every server of the cluster; brokers that are started later have it, too."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        before = self.ahead_ms
        super().advance(ms=ms, seconds=seconds, minutes=minutes, hours=hours, days=days)
        for broker in self._cluster:
            if broker.is_running:
                broker.advance_clock(self.ahead_ms - before)


class Cluster(Contents):
    """Started by `start` or `with`, gone with all its files when it stops.

    `settings` are settings of every broker under Apache's names, such as {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}; those
    that make a slave a slave stay.
    """

    def __init__(self, *, masters: int = 2, slaves: int = 0, settings: Mapping[str, str] | None = None) -> None:
        if not 1 <= masters <= _MOST:
            raise OrbitError(f"{masters} masters cannot be", hint=f"from 1 to {_MOST}")
        shared = dict(settings or {})
        broker_configuration(Path(), shared)  # what is wrong shows here, once, and not in every process
        self.address = ""  # of the name server: what clients connect to
        self.clock = ClusterClock(self)
        self._folder = Path(tempfile.mkdtemp(prefix="orbitmq-cluster-"))
        self._thread: LoopThread | None = None
        self._brokers: dict[str, ClusterBroker] = {}
        for name in ascii_lowercase[:masters]:
            for broker_id in range(slaves + 1):
                own = {key: value for key, value in shared.items() if not broker_id or key not in _A_MASTERS_OWN}
                broker = ClusterBroker(self, name, broker_id, self._folder / f"store-{name}-{broker_id}", own)
                self._brokers[broker.title] = broker

    def __getitem__(self, title: str) -> ClusterBroker:
        try:
            return self._brokers[title]
        except KeyError:
            raise OrbitError(f"there is no broker {title!r}", hint=f"there are {', '.join(self._brokers)}") from None

    def __iter__(self) -> Iterator[ClusterBroker]:
        return iter(self._brokers.values())

    @property
    def masters(self) -> list[ClusterBroker]:
        return [broker for broker in self if not broker.broker_id]

    def start(self) -> Self:
        name_server = NameServer(name_server_configuration(self._folder / "nameserver"))
        self._thread = LoopThread("orbitmq-test-cluster")
        self._thread.start(name_server)
        self.address = str(name_server.address)
        try:
            for broker in self:
                broker.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for broker in reversed(list(self)):
            if broker.is_running:
                broker.stop()
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


_A_MASTERS_OWN: Final = frozenset({"brokerRole", "inSyncReplicas"})
