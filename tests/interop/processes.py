"""Child processes of a test: start, wait until ready, freeze, kill; their output kept in a file; free ports for them."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

READY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
_LOG_TAIL: Final = 4000

# Below Linux's range for outgoing connections, so that no client socket takes a chosen port before its server does.
_PORTS: Final = range(12_000, 32_000)


class Process:
    """One child process; what it prints goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0  # what an earlier life printed does not count
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def printed(self) -> str:
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def wait_for_line(self, text: str) -> str:
        """The first printed line that holds `text`; fails with the log when the process ends or takes too long."""

        def whole_line() -> str | None:
            lines = self.printed().split("\n")[:-1]
            return next((line for line in lines if text in line), None)

        deadline = time.monotonic() + READY_SECONDS
        while (line := whole_line()) is None:
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.log.stem} did not print {text!r}:\n{self.printed()[-_LOG_TAIL:]}")
            time.sleep(_POLL_SECONDS)
        return line

    def stop(self) -> int:
        """Ask it to end (SIGTERM), insist after a while; its exit status."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(READY_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a power cut would."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def wait(self) -> int:
        """Until it has ended by itself; its exit status."""
        return self._child.wait(READY_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def freeze(self) -> None:
        """Stop it from running (SIGSTOP); its connections stay open and silent."""
        self._child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child.send_signal(signal.SIGCONT)


@contextmanager
def killed_on_failure(process: Process) -> Iterator[None]:
    """Whoever starts a process and then finds it unfit leaves none behind."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def eventually(
    probe: Callable[[], T], wanted: Callable[[T], bool], seconds: float, what: str, *, every: float = _POLL_SECONDS
) -> T:
    """Repeat `probe` until `wanted` accepts its value; fail with the last value when the time is up."""
    deadline = time.monotonic() + seconds
    while not wanted(value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s; last seen: {value!r}")
        time.sleep(every)
    return value


def free_port(*offsets: int) -> int:
    """A port p for which p itself and every p + offset is free on the loopback address."""
    rng = random.Random(os.urandom(8))
    while True:
        port = rng.choice(_PORTS)
        if all(_is_free(port + offset) for offset in (0, *offsets)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
