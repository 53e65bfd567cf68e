"""What benchmarks share: the C programs beside them, and what /proc knows of a process."""

from __future__ import annotations

import mmap
import os
import platform
import re
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STEP_MB: Final = 16


def compile_c(folder: Path, name: str) -> Path:
    """Compile `benchmarks/<name>.c` into `folder`."""
    program = folder / name
    subprocess.run(["cc", "-O2", "-o", str(program), str(Path(__file__).with_name(f"{name}.c"))], check=True)
    return program


def compile_bytecode() -> None:
    """As pip does when it installs: a start is not to be measured with the compiling of every module in it."""
    package = Path(__file__).parent.parent / "src" / "orbitmq"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)


def children_seconds() -> float:
    """User and system time of all children that have ended: a load generator's, before and after it ran."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_seconds(pid: int) -> float:
    """User and system time so far."""
    user, system = _stat(pid)[11:13]
    return (user + system) / os.sysconf("SC_CLK_TCK")


def page_faults(pid: int) -> int:
    """So far, without those that waited for the disk."""
    return _stat(pid)[7]


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat, each at its place behind the name; the state, which is a letter, counts as 0."""
    _, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return [0, *map(int, numbers)]


def memory_mb(pid: int, kind: str = "VmRSS") -> float:
    """`VmRSS` counts everything resident, `RssAnon` leaves out the pages of mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(rf"{kind}:\s+(\d+) kB", status)[0]) / 1024


def memory_of_machine_mb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 20)


@contextmanager
def memory_at_hand(megabytes: int) -> Iterator[Callable[[float], None]]:
    """Memory that is in use, to be given back bit by bit while a measurement fills new pages: call what is yielded with its seconds.

    A virtual machine may hand what it does not use back to its host, within a second or two, if two megabytes lie together. Where it does,
    each page of them costs 40 us or more when it is used next, as long as several messages: who brings pages of a file into memory by the
    megabyte pays, and who takes them one by one does not. What was given back last is taken first.
    """
    steps = max(1, megabytes // _STEP_MB)
    enough = Event()
    givers: list[Thread] = []
    with mmap.mmap(-1, (steps * _STEP_MB) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1

        def give_back(seconds: float) -> None:
            for step in range(steps):
                memory.madvise(mmap.MADV_DONTNEED, (step * _STEP_MB) << 20, _STEP_MB << 20)
                if enough.wait(seconds / steps):
                    return

        def begin(seconds: float) -> None:
            givers.append(Thread(target=give_back, args=(seconds,)))
            givers[-1].start()

        try:
            yield begin
        finally:
            enough.set()
            for giver in givers:
                giver.join()


def about(**more: Any) -> dict[str, Any]:
    """For the head of a result file."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load average before": os.getloadavg()[0],
        **more,
    }
