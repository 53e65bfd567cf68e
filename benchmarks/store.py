"""How fast the store is, in process: `python -m benchmarks.store [--quick] [--directory DIR]`.

    append      records a second with the flushing threads running, every record indexed by queue and unique key
    read        records a second of a whole queue, 32 at a time
    recovery    GB of log a second, opened after a kill, when every record is looked at; the page cache is warm
    indexing    records a second when queues and key index are built from the log alone
    queues      memory, start-up and stop of ten thousand queues
    big store   start-up after a clean stop of 50 GB in 50 files, sparse but for the last one
    steps       processor time of each step of an append, best of many rounds: what to look at on a busy machine

Each rate is given by the clock and by processor time; the latter hardly depends on what else the machine does. Prints a table
and writes benchmarks/results/store.json, with the machine's load beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from orbitmq.message.hosts import pack_host
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import mark_running
from orbitmq.storage.open_files import PAGE_BYTES, MappedFile
from orbitmq.storage.store import Store

HOST = pack_host("127.0.0.1", 10911)
TOPIC = "BenchmarkTopic"
RESULTS = Path(__file__).parent / "results" / "store.json"

_OPEN_AND_MEASURE = """
import gc, sys, time
from pathlib import Path
from benchmarks.store import HOST, resident_bytes
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.store import Store
gc.collect()
before = resident_bytes()
started = time.perf_counter()
store = Store(StorageConfig(directory=Path(sys.argv[1]), segment_bytes=64 << 20), HOST)
seconds = time.perf_counter() - started
gc.collect()
resident = resident_bytes() - before
for topic, queue_id in store.queue_ranges():
    store.append(topic, queue_id, b"hello", b"", 1_700_000_000_000, HOST)
stopping = time.perf_counter()
store.close()
print(len(store.queue_ranges()), resident, seconds, time.perf_counter() - stopping)
"""


def resident_bytes() -> int:
    """Of this process, without pages of mapped files, which the kernel may take back at any time."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def properties(number: int) -> bytes:
    """As a Java client's message has them, with a unique key."""
    key = f"7F000001{number:024X}".encode()
    return (
        b"UNIQ_KEY\x01" + key + b"\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02WAIT\x01true\x02TRACE_ON\x01true\x02"
    )


class Stopwatch:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def rates(self, name: str, amount: float) -> dict[str, float]:
        wall, processor = time.perf_counter() - self._wall, time.process_time() - self._processor
        return {name: amount / wall, f"{name}, of processor time": amount / processor}


def append(directory: Path, body_bytes: int, queues: int, count: int) -> dict[str, float]:
    """Properties are made beforehand: making them is the sender's work."""
    store = Store(StorageConfig(directory=directory), HOST)
    store.start()
    body = os.urandom(body_bytes)
    prepared = [properties(number) for number in range(count)]
    gc.collect()
    gc.freeze()
    put = store.append
    watch = Stopwatch()
    for number, text in enumerate(prepared):
        put(TOPIC, number % queues, body, text, 1_700_000_000_000, HOST)
    store.dispatch()
    rates = watch.rates(f"appends a second, {body_bytes} B, {queues} queues", count)
    gc.unfreeze()
    store.close()
    return rates


def read(directory: Path, body_bytes: int) -> dict[str, float]:
    store = Store(StorageConfig(directory=directory), HOST)
    records = 0
    watch = Stopwatch()
    for (topic, queue_id), queue in store.queue_ranges().items():
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.read(topic, queue_id, offset, 32)
            offset = result.next_offset
            records += result.count
    rates = watch.rates(f"records read a second by 32, {body_bytes} B", records)
    store.close()
    return rates


def recovery(directory: Path) -> dict[str, float]:
    """Without a checkpoint that vouches for anything; then without queues and key index as well."""
    mark_running(LocalDisk(), directory)
    (directory / "checkpoint").unlink()
    watch = Stopwatch()
    store = Store(StorageConfig(directory=directory), HOST)
    figures = watch.rates("GB recovered a second", (store.log.end - store.log.start) / 1e9)
    records = store.recovered.records
    store.close()
    for name in ("consumequeue", "index"):
        shutil.rmtree(directory / name)
    watch = Stopwatch()
    store = Store(StorageConfig(directory=directory), HOST)
    figures |= watch.rates("records indexed a second", records)
    store.close()
    return figures


def many_queues(directory: Path, count: int) -> dict[str, float]:
    store = Store(StorageConfig(directory=directory, segment_bytes=64 << 20), HOST)
    for number in range(count):
        store.append(f"Topic{number // 8}", number % 8, b"hello", properties(number), 1_700_000_000_000, HOST)
    store.close()
    command = [sys.executable, "-c", _OPEN_AND_MEASURE, str(directory)]
    queues, size, start, stop = subprocess.check_output(command, text=True, cwd=Path(__file__).parents[1]).split()
    return {
        "queues": float(queues),
        "bytes per queue": int(size) / int(queues),
        "MB for all queues": int(size) / 1e6,
        "start-up seconds": float(start),
        "stop seconds, every queue written to": float(stop),
    }


class _SparseDisk(LocalDisk):
    """Gives new files no blocks: fifty of them in a moment."""

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        return super().allocate(path, size, reserve=PAGE_BYTES)


def big_store(directory: Path, records: int) -> dict[str, float]:
    """A message in each of 50 files of 1 GB, `records` of 1 KB in the last one."""
    config = StorageConfig(directory=directory, prepare_next_segment=False)
    store = Store(config, HOST, disk=_SparseDisk())
    for number in range(50):
        store.append(TOPIC, number % 8, b"hello", properties(number), 1_700_000_000_000, HOST)
        store.log._roll()
    for number in range(records):
        store.append(TOPIC, number % 8, bytes(1024), properties(number), 1_700_000_000_000, HOST)
    store.close()
    started = time.perf_counter()
    store = Store(config, HOST, disk=_SparseDisk())
    seconds = time.perf_counter() - started
    assert store.recovered.records == records, "a clean start goes over the last file only"
    store.close()
    return {f"start-up seconds of 50 GB, {records} records in the last file": seconds}


def steps(directory: Path, rounds: int) -> dict[str, float]:
    """Microseconds of processor time a message, 256 at a time, in the best round."""
    store = Store(StorageConfig(directory=directory), HOST)
    body, size = os.urandom(1024), 256
    best = dict.fromkeys(("append", "queues", "keys"), float("inf"))
    for number in range(rounds):
        texts = [properties(number * size + each) for each in range(size)]
        marks = [time.thread_time_ns()]
        for each, text in enumerate(texts):
            store.log.append(TOPIC, each % 8, body, text, 1_700_000_000_000, HOST)
        marks.append(time.thread_time_ns())
        store._indexer._enter_queues([store.log.recent.popleft() for _ in range(size)])
        marks.append(time.thread_time_ns())
        store._indexer.enter_waiting_keys()
        marks.append(time.thread_time_ns())
        for name, (start, end) in zip(best, pairwise(marks), strict=True):
            best[name] = min(best[name], (end - start) / size / 1000)
    store.abandon()
    return {f"us of processor time a message, {name}": value for name, value in best.items()}


def measure(base: Path, *, quick: bool) -> dict[str, float]:
    scale = 10 if quick else 1
    figures: dict[str, float] = {}
    for body_bytes, count in ((1024, 400_000 // scale), (100, 800_000 // scale)):
        for queues in (1, 8):
            directory = base / f"append-{body_bytes}-{queues}"
            figures |= append(directory, body_bytes, queues, count)
            if queues == 8:
                figures |= read(directory, body_bytes)
            if (body_bytes, queues) == (1024, 8):
                figures |= recovery(directory)
            shutil.rmtree(directory)
    figures |= many_queues(base / "queues", 10_000 // scale)
    figures |= big_store(base / "big", 400_000 // scale)
    return figures | steps(base / "steps", 2000 // scale)


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "load average": os.getloadavg()[0],
    }


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; the results are not written")
    parser.add_argument("--directory", type=Path, help="where to work; a temporary directory otherwise")
    options = parser.parse_args(argv)
    about = machine()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="orbitmq-bench-") as base:
        figures = measure(Path(base), quick=options.quick)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name.ljust(width)}  {value:>14,.0f}" if value >= 100 else f"{name.ljust(width)}  {value:>14.3f}")
    if not options.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": about, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    run(sys.argv[1:])
