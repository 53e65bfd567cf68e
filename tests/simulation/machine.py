"""A computer: a disk, a clock, an address, and the process that runs on it, or none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.disk import MemoryDisk, Platter
from tests.simulation.loop import Lane
from tests.simulation.network import HostNetwork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from random import Random

    from orbitmq.storage.threads import Rounds
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import SimulatedNetwork

_DISK_SECONDS: Final = (0.001, 0.005, 0.03, 0.1)  # a sync, on disks of different kinds
WALL_MS: Final = 1_700_000_000_000  # what a right clock shows when the loop's time is 0


class MachineClock:
    """A `Clock` that may be wrong."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.wrong_by_ms = 0

    def now_ms(self) -> int:
        return WALL_MS + self.wrong_by_ms + int(self._loop.time() * 1000)


class Machine:
    def __init__(
        self,
        name: str,
        host: str,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        random: Random,
        trace: Callable[..., None],
    ) -> None:
        self.name = name
        self.host = host
        self.loop = loop
        self.random = random
        self.clock = MachineClock(loop)
        self.platter = Platter(self.clock.now_ms)
        self.lane: Lane | None = None
        self.starts = 0
        self._wires = network
        self._disk_seconds = random.choice(_DISK_SECONDS)
        self._trace = trace

    def is_up(self) -> bool:
        return self.lane is not None

    def boot(self) -> Lane:
        """A new process may begin here."""
        assert self.lane is None, f"{self.name} is up"
        self._wires.power_on(self.host)
        self.starts += 1
        self.lane = Lane(f"{self.name}#{self.starts}", self.host)
        self.disk = MemoryDisk(self.platter, self.lane, self._trace)
        self.network = HostNetwork(self._wires, self.host, self.lane)
        self.threads = SimulatedThreads(self.loop, self.random, self.lane, self._disk_seconds)
        self._trace("boot", self.name)
        return self.lane

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As the process that runs here."""
        assert self.lane is not None, f"{self.name} is down"
        return self.loop.create_task(work, context=self.lane.context)

    def kill(self) -> None:
        """As `kill -9` does."""
        self._end("kill")
        self.platter.process_ended()
        self._wires.process_killed(self.host)

    def cut_power(self) -> None:
        self._end("power cut")
        self.platter.power_cut(self.random)
        self._wires.power_cut(self.host)

    def ended(self) -> None:
        """Its process has stopped in good order."""
        self._end("stopped")
        self._wires.process_killed(self.host)
        self.platter.process_ended()

    def _end(self, how: str) -> None:
        if self.lane is not None:
            self._trace(how, self.name)
            self.loop.end(self.lane)
            self.lane = None


class SimulatedThreads:
    """`Threads` without threads: a round runs whole, a little after it was asked for."""

    def __init__(self, loop: SimulatedLoop, random: Random, lane: Lane, disk_seconds: float) -> None:
        self._loop = loop
        self._random = random
        self._lane = lane
        self._disk_seconds = disk_seconds

    def repeat(
        self, name: str, round_: Callable[[], bool], is_due: Callable[[], bool], every_seconds: float | None
    ) -> Rounds:
        latency = partial(self._random.expovariate, 1 / self._disk_seconds)
        return _SimulatedRounds(self._loop, self._lane, latency, round_, is_due, every_seconds)


class _SimulatedRounds:
    def __init__(
        self,
        loop: SimulatedLoop,
        lane: Lane,
        latency: Callable[[], float],
        round_: Callable[[], bool],
        is_due: Callable[[], bool],
        every_seconds: float | None,
    ) -> None:
        self.idle = False
        self._loop = loop
        self._latency = latency
        self._lane = lane
        self._round = round_
        self._is_due = is_due
        self._every_seconds = every_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self) -> None:
        if not self.idle and self._timer is None and not self._ended:
            self._rest()

    def wake(self) -> None:
        if self.idle and self._is_due():
            self._soon()

    def finish(self) -> None:
        while not self._ended and self._is_due():
            self._ended = not self._round()

    def stop(self) -> None:
        self._ended = True
        self.idle = False
        if self._timer is not None:
            self._timer.cancel()

    def _rest(self) -> None:
        self.idle = True
        if self._is_due():
            self._soon()
        elif self._every_seconds is not None:
            self._timer = self._loop.call_later(self._every_seconds, self._run, context=self._lane.context)

    def _soon(self) -> None:
        self.idle = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._latency(), self._run, context=self._lane.context)

    def _run(self) -> None:
        self._timer = None
        self.idle = False
        if self._round() and not self._ended:
            self._rest()
