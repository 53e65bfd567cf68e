"""A broker with much of everything: `python -m benchmarks broker_scale [--quick]`.

    topics, groups, connections, held pulls   10,000, 1,000, 5,000, 20,000
    start-up seconds                          from the command to the ready line, with all topics on disk; on a busy
                                              machine its processor time tells more
    resident, anonymous MB                    with everybody connected and waiting
    idle CPU %                                of one core, over twenty seconds of nobody doing anything but waiting
    wake-up ms                                from a sent message to the answer of a pull that was held for it; median and 99th

The broker is a process of its own, started as a user starts it; the clients share this one. Results:
benchmarks/results/broker_scale.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop.processes import Process

from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.transport.address import Address, parse_address
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

RESULTS: Final = Path(__file__).parent / "results" / "broker_scale.json"
SEND, PULL, HEART_BEAT, IDS_CHANGED = 310, 11, 34, 40
PATIENCE_SECONDS: Final = 600.0
IDLE_SECONDS: Final = 20.0
WAKE_UPS: Final = 2000
AT_ONCE: Final = 200  # connections that are being opened at a time


@dataclass(frozen=True, slots=True)
class Scale:
    topics: int = 10_000
    groups: int = 1000
    connections: int = 5000
    held_pulls: int = 20_000


def start_broker(folder: Path) -> tuple[Process, Address, float]:
    command = [sys.executable, "-m", "orbitmq", "broker", "--host", "127.0.0.1", "--port", "0", "-n", ""]
    command += ["--store", str(folder / "store"), "--set", f"mappedFileSizeCommitLog={64 << 20}"]
    command += ["--set", "osPageCacheBusyTimeOutMills=30000"]  # a busy machine is no reason to refuse a message here
    started = time.perf_counter()
    process = Process(command, folder / f"broker-{time.monotonic_ns()}.out", {"HOME": str(folder)})
    line = process.wait_for_line(" ready on ")
    seconds = time.perf_counter() - started
    return process, parse_address(line.split(" ready on ", 1)[1].strip()), seconds


# ---- what clients say


def send(topic: str) -> Command:
    header = SendMessageV2(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
    )
    return Command(SEND, fields=header.to_fields(), body=b"x" * 1024)


def held_pull(topic: str, group: str, offset: int) -> Command:
    header = PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        suspend_timeout_millis=120_000,
        subscription="*",
    )
    return Command(PULL, fields=header.to_fields())


def heartbeat(number: int, group: str, topic: str) -> Command:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    beat = {"clientID": f"127.0.0.1@{number}", "consumerDataSet": [consumer], "producerDataSet": []}
    return Command(HEART_BEAT, body=json.dumps(beat).encode())


async def hear_of_change(request: Command, connection: Connection) -> None:
    """Others join the group all the time; these clients have nothing to share anew."""


# ---- the phases


async def create_topics(address: Address, scale: Scale) -> None:
    pool = Pool()
    connection = await pool.connection(address)
    for first in range(0, scale.topics, 500):
        calls = [
            connection.start_call(send(f"Topic{number}"), PATIENCE_SECONDS)
            for number in range(first, min(first + 500, scale.topics))
        ]
        for answer in await asyncio.gather(*calls):
            assert answer.code == 0, answer.remark
    await pool.close()


async def crowd(address: Address, scale: Scale) -> tuple[list[Pool], list[asyncio.Future[Command]]]:
    """Everybody connects, says which group it belongs to, and waits for messages."""
    pools = [Pool({IDS_CHANGED: hear_of_change}) for _ in range(scale.connections)]
    room = asyncio.Semaphore(AT_ONCE)
    pulls_each = scale.held_pulls // scale.connections

    async def join(number: int) -> None:
        group = f"Group{number % scale.groups}"
        async with room:
            connection = await pools[number].connection(address)
            answer = await connection.call(heartbeat(number, group, f"Topic{number % scale.topics}"), PATIENCE_SECONDS)
            assert answer.code == 0, answer.remark
        for i in range(pulls_each):
            topic = f"Topic{(number * pulls_each + i) % scale.topics}"
            waiting.append(connection.start_call(held_pull(topic, group, 1), PATIENCE_SECONDS))

    waiting: list[asyncio.Future[Command]] = []
    await asyncio.gather(*(join(number) for number in range(scale.connections)))
    await asyncio.sleep(2)
    assert not any(call.done() for call in waiting)
    return pools, waiting


async def wake_up_ms(address: Address) -> list[float]:
    """One message at a time, each into the arms of a pull that waits for it."""
    sender, receiver = Pool(), Pool()
    sending, receiving = await sender.connection(address), await receiver.connection(address)
    answer = await sending.call(send("WakeUp"), PATIENCE_SECONDS)
    last = int(answer.fields["queueOffset"])
    times = []
    for offset in range(last + 1, last + 1 + WAKE_UPS):
        woken = receiving.start_call(held_pull("WakeUp", "Waker", offset), PATIENCE_SECONDS)
        await asyncio.sleep(0.002)
        started = time.perf_counter()
        stored = sending.start_call(send("WakeUp"), PATIENCE_SECONDS)
        answer = await woken
        times.append(1000 * (time.perf_counter() - started))
        assert answer.code == 0
        await stored
    await sender.close()
    await receiver.close()
    return times


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, kind: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


async def measure(folder: Path, scale: Scale) -> dict[str, float]:
    process, address, empty_seconds = start_broker(folder)
    figures = {"start-up seconds, empty": empty_seconds}
    try:
        await create_topics(address, scale)
        process.stop()
        process, address, figures["start-up seconds, all topics"] = start_broker(folder)
        figures["start-up CPU seconds, all topics"] = cpu_seconds(process.pid)
        figures["resident MB, all topics"] = memory_mb(process.pid, "VmRSS")
        alone = await wake_up_ms(address)
        pools, waiting = await crowd(address, scale)
        figures["resident MB, everybody waiting"] = memory_mb(process.pid, "VmRSS")
        figures["anonymous MB, everybody waiting"] = memory_mb(process.pid, "RssAnon")
        before = cpu_seconds(process.pid)
        await asyncio.sleep(IDLE_SECONDS)
        figures["idle CPU %"] = 100 * (cpu_seconds(process.pid) - before) / IDLE_SECONDS
        among = await wake_up_ms(address)
        for name, times in (("alone", alone), ("among the crowd", among)):
            figures[f"wake-up ms {name}, median"] = statistics.median(times)
            figures[f"wake-up ms {name}, 99th"] = statistics.quantiles(times, n=100)[98]
        for call in waiting:
            call.cancel()
        await asyncio.gather(*(pool.close() for pool in pools))
        started = time.perf_counter()
        status = await asyncio.to_thread(process.stop)
        figures["stop seconds"] = time.perf_counter() - started
        assert status == 0, process.printed()[-2000:]
    finally:
        process.kill()
    return figures


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything; the results are not written")
    options = parser.parse_args(argv)
    scale = Scale(1000, 100, 500, 2000) if options.quick else Scale()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load average before": os.getloadavg()[0],
    }
    figures: dict[str, float] = {}

    async def measured() -> None:
        with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as folder:
            figures.update(await measure(Path(folder), scale))

    run_loop(measured())
    for name, value in figures.items():
        print(f"{name:36}{value:>12,.2f}")
    if not options.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": about, "scale": asdict(scale), "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    run(sys.argv[1:])
