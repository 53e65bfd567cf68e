"""The store's threads, behind one small protocol: what they do are rounds, and a simulation runs the same rounds without any thread.

    Threads.repeat(name, round_, is_due, every_seconds)    a round whenever `is_due` says so, and after `every_seconds` in any case
    Rounds      start / wake / finish / stop

Java: ServiceThread
"""

from __future__ import annotations

from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Rounds(Protocol):
    """Something that is done again and again, never twice at once."""

    @property
    def idle(self) -> bool:
        """Nothing is done right now: without a `wake`, nothing will be before its time."""
        ...

    def start(self) -> None:
        """A second call does nothing."""
        ...

    def wake(self) -> None:
        """`is_due` may answer otherwise now. Returns at once."""
        ...

    def finish(self) -> None:
        """Return once nothing is due any more."""
        ...

    def stop(self) -> None:
        """Return once the round that runs has ended; there will be no other."""
        ...


class Threads(Protocol):
    def repeat(
        self, name: str, round_: Callable[[], bool], is_due: Callable[[], bool], every_seconds: float | None
    ) -> Rounds:
        """Nothing happens before its `start`. It ends when `round_` answers False. `is_due` must not wait for anything."""
        ...


class OwnThreads:
    """The real ones: each repetition has a thread to itself."""

    def repeat(
        self, name: str, round_: Callable[[], bool], is_due: Callable[[], bool], every_seconds: float | None
    ) -> Rounds:
        return _ThreadRounds(name, round_, is_due, every_seconds)


class _ThreadRounds:
    def __init__(
        self, name: str, round_: Callable[[], bool], is_due: Callable[[], bool], every_seconds: float | None
    ) -> None:
        self.idle = False
        self._round = round_
        self._is_due = is_due
        self._every_seconds = every_seconds
        self._changed = Condition()
        self._stopping = False
        self._started = False
        self._ended = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (self.idle and not self._is_due()))

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait() and self._round():
                pass
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Until there is something to do; False: it is to stop."""
        with self._changed:
            self.idle = True  # before looking: whoever changes something meanwhile sees it and wakes us
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or self._is_due(), timeout=self._every_seconds)
            self.idle = False
            return not self._stopping
