"""What the benchmark of the pipeline measures with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from benchmarks.spark_measure import Tree

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

# As pyspark's daemon: nobody is told when a worker ends.
DAEMON: Final = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
worker = os.fork()
if not worker:
    while time.process_time() < 0.1:
        pass
    print("worked", flush=True)
    sys.stdin.readline()
    os._exit(0)
sys.stdin.close()
os.close(0)
try:
    os.waitpid(worker, 0)
except ChildProcessError:
    pass
print("ended", flush=True)
signal.pause()
"""


def test_the_time_of_a_worker_that_has_ended_still_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        try:
            assert daemon.stdin is not None
            assert daemon.stdout is not None
            tree = Tree(daemon.pid)
            assert daemon.stdout.readline() == "worked\n"
            _, below = tree.root_and_below()
            assert below > 0
            daemon.stdin.write("\n")
            daemon.stdin.flush()
            assert daemon.stdout.readline() == "ended\n"
            assert tree.root_and_below()[1] >= below
        finally:
            daemon.kill()
