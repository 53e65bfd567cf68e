"""Our name server beside Apache's, in the same run: `python -m benchmarks nameserver [--seconds S] [--rounds N]`.

    route queries   a second, 64 connections with one query in flight each, and 4 connections with 32;
                    and the processor time each takes, which holds on a busy machine too
    registration    milliseconds until a broker with 10,000 topics is accepted, plain JSON body
    memory          resident, after all of it

Both serve on the loopback address from fresh folders; each is warmed up; rounds alternate between the two, and medians count.
The load generator (load.c) takes a share of the same cores, so compare ratios. Apache's runs with its own start script's
collector (G1) and a heap of 512 MB. Without Java only ours is measured. Results: benchmarks/results/nameserver.json.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.interop import java, orbit
from tests.interop.apache import write_properties
from tests.interop.processes import Process, free_port

from benchmarks.machine import about, compile_c, memory_mb, processor_seconds
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.registration import Registration
from orbitmq.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder

RESULTS: Final = Path(__file__).parent / "results" / "nameserver.json"
APACHE_RELEASE: Final = "5.3.3"
TOPIC: Final = "BenchmarkTopic"
SHAPES: Final = ((64, 1), (4, 32))  # connections, queries in flight on each
TOPICS: Final = 10_000
REGISTRATIONS: Final = 7  # in each round

_JVM: Final = ("-server", "-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
# What the interop tests add to keep their short-lived JVMs small; a server that lives does without.
_NOT_FOR_SERVERS: Final = ("-XX:TieredStopAtLevel", "-XX:+UseSerialGC", "-Xm", "-Xshare")


class Contender:
    """A running name server, the figures it reached, and the brokers that are registered with it."""

    def __init__(self, name: str, address: str, process: Process) -> None:
        self.name = name
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.process = process
        self.figures: dict[str, list[float]] = {}
        self._lines: list[socket.socket] = []
        self._brokers = 0

    def note(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, []).append(value)

    def register(self, topics: int, *, stays: bool = False) -> float:
        """Seconds from the first byte sent to the answer. The broker leaves again, unless it `stays`."""
        names = [TOPIC, *(f"Topic-{number}" for number in range(topics - 1))]
        table = TopicTable(
            data_version=DataVersion(counter=1, timestamp=1_700_000_000_000),
            topic_config_table={
                name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8) for name in names
            },
        )
        self._brokers += 1
        fields = {
            "brokerName": f"broker-{self._brokers}",
            "brokerAddr": f"10.1.{self._brokers}.1:10911",
            "clusterName": "BenchmarkCluster",
            "haServerAddr": "10.1.1.1:10912",
            "brokerId": "0",
            "bodyCrc32": "0",
            "compressed": "false",
        }
        body = Registration(topic_config_serialize_wrapper=table, filter_server_list=[]).to_json()
        frame = commands.encode(Command(RequestCode.REGISTER_BROKER, opaque=1, fields=fields, body=body))
        line = socket.create_connection((self.host, self.port))
        if stays:
            self._lines.append(line)
        started = time.perf_counter()
        line.sendall(frame)
        decoder = FrameDecoder()
        while not (frames := decoder.feed(line.recv(1 << 16))):
            pass
        seconds = time.perf_counter() - started
        answer = commands.decode(frames[0])
        assert answer.code == 0, answer.remark
        if not stays:
            line.close()
        return seconds

    def ask_routes(self, load: Path, connections: int, window: int, seconds: float) -> tuple[float, float]:
        """Answers a second, and processor time for each in microseconds; the latter holds on a busy machine too."""
        command = [
            str(load),
            "route",
            self.host,
            str(self.port),
            TOPIC,
            "1",
            str(connections),
            str(window),
            "0",
            str(seconds),
        ]
        before = processor_seconds(self.process.pid)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        used = processor_seconds(self.process.pid) - before
        if done.returncode:
            raise SystemExit(f"the load generator failed against {self.name}: {done.stdout}{done.stderr}")
        found = re.search(r"msgs=(\d+) .*rate=(\d+)", done.stdout)
        assert found is not None
        return float(found[2]), 1e6 * used / int(found[1])

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.process.stop()


def start_ours(folder: Path) -> Contender:
    started = orbit.start_name_server(folder)
    return Contender("OrbitMQ", started.address, started.process)


def start_apaches(folder: Path) -> Contender:
    folder.mkdir()
    build, port = java.build(APACHE_RELEASE), free_port()
    config = write_properties(folder / "n.properties", {"listenPort": port, "kvConfigPath": folder / "kvConfig.json"})
    command = build.command("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config), home=folder)
    kept = [word for word in command[1:] if not word.startswith(_NOT_FOR_SERVERS)]
    process = Process([command[0], *_JVM, *kept], folder / "namesrv.out")
    process.wait_for_line("The Name Server boot success")
    return Contender(f"Apache {APACHE_RELEASE}", f"127.0.0.1:{port}", process)


def measure(contenders: list[Contender], load: Path, rounds: int, seconds: float) -> None:
    for contender in contenders:
        contender.register(TOPICS, stays=True)
        for _ in range(REGISTRATIONS):
            contender.register(TOPICS)
        for connections, window in SHAPES:
            contender.ask_routes(load, connections, window, seconds)
    for number in range(rounds):
        # Whoever goes second finds warmer caches: take turns.
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            for connections, window in SHAPES:
                rate, processor = contender.ask_routes(load, connections, window, seconds)
                contender.note(f"route queries/s, {connections} x {window}", rate)
                contender.note(f"processor us a query, {connections} x {window}", processor)
            for _ in range(REGISTRATIONS):
                contender.note("registration of 10,000 topics, ms", 1000 * contender.register(TOPICS))
    for contender in contenders:
        contender.note("resident memory, MB", memory_mb(contender.process.pid))


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load for each shape and round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    head = about(java=" ".join(_JVM), rounds=options.rounds, seconds=options.seconds)
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as base, ExitStack() as stack:
        load = compile_c(Path(base), "load")
        contenders = [start_ours(Path(base) / "ours")]
        stack.callback(contenders[0].close)
        if missing := java.missing_tools():
            print(f"only ours: {missing}", file=sys.stderr)
        else:
            contenders.append(start_apaches(Path(base) / "theirs"))
            stack.callback(contenders[1].close)
        measure(contenders, load, options.rounds, options.seconds)
    report(contenders, head)


def report(contenders: list[Contender], head: dict[str, Any]) -> None:
    medians = {c.name: {figure: statistics.median(values) for figure, values in c.figures.items()} for c in contenders}
    names = list(medians)
    print(f"{'':36}" + "".join(f"{name:>14}" for name in names) + (f"{'ratio':>10}" if len(names) == 2 else ""))
    for figure in contenders[0].figures:
        values = [medians[name][figure] for name in names]
        ratio = f"{values[0] / values[1]:>9.2f}x" if len(values) == 2 else ""
        print(f"{figure:36}" + "".join(f"{value:>14,.1f}" for value in values) + ratio)
    RESULTS.parent.mkdir(exist_ok=True)
    everything = {"machine": head, "medians": medians, "rounds": {c.name: c.figures for c in contenders}}
    RESULTS.write_text(json.dumps(everything, indent=2) + "\n")
