"""What networks, servers, handlers and clocks do to programs, each a real process: servers, a bad network, senders and readers.

Whatever happens: what was acknowledged is handled in the end; no call outlives its time limit; every failure is of our exception
tree and has a code and a hint; and a program that ends does so quietly, with nothing forgotten.
"""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbitmq import errors
from tests.interop import orbit
from tests.interop.apache import NameServer
from tests.interop.processes import Process, eventually, free_port, killed_on_failure

pytestmark = [
    pytest.mark.xdist_group("client-faults"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address and Linux's signals"),
]

ENOUGH = 20
PATIENCE = 90.0
_BESIDE = (-2, 1)  # a broker listens there, too: for old clients, and for slaves


class World:
    """Two name servers and a broker whose advertised address is a proxy's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name_server_ports = free_port(), free_port()
        self.name_servers = [self._start_name_server(number) for number in (0, 1)]
        self._broker_port = free_port(*_BESIDE)
        self.addresses = ";".join(server.address for server in self.name_servers)
        self.start_broker()
        self.proxy = self._start_proxy()

    def start_broker(self) -> None:
        settings: dict[str, str | int] = {
            "brokerIP1": "127.0.0.2",
            "registerNameServerPeriod": 10_000,
            "messageDelayLevel": " ".join(["1s"] * 18),  # what failed comes again soon
        }
        self.broker = orbit.start_broker(
            self._folder / "broker", self.addresses, settings=settings, port=self._broker_port
        )

    def move_broker(self) -> None:
        """Kill broker and proxy, and start both again at another address."""
        self.broker.process.kill()
        self.proxy.kill()
        self._broker_port = free_port(*_BESIDE)
        self.start_broker()
        self.proxy = self._start_proxy()

    def restart_name_server(self, number: int) -> None:
        self.name_servers[number] = self._start_name_server(number)

    def close(self) -> None:
        for process in (self.proxy, self.broker.process, *(server.process for server in self.name_servers)):
            process.kill()

    def _start_name_server(self, number: int) -> NameServer:
        return orbit.start_name_server(self._folder / f"nameserver{number}", port=self._name_server_ports[number])

    def _start_proxy(self) -> Process:
        ways = (f"127.0.0.2:{self._broker_port}", f"127.0.0.1:{self._broker_port}")
        proxy = Process([sys.executable, "-m", "tests.client.faulty_proxy", *ways], self._folder / "proxy.out")
        with killed_on_failure(proxy):
            proxy.wait_for_line("ready")
        return proxy


class Worker:
    """One program, and what it told."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def told(self, event: str) -> list[Any]:
        return [line[event] for line in self._lines() if event in line]

    def tells_more(self, event: str) -> None:
        before = len(self.told(event))
        eventually(
            lambda: len(self.told(event)), lambda count: count >= before + ENOUGH, PATIENCE, f"{ENOUGH} more {event}"
        )

    def tells(self, event: str) -> None:
        eventually(lambda: self.told(event), bool, PATIENCE, event)

    def jumps(self) -> None:
        before = len(self.told("jumped"))
        self.process.signal(signal.SIGUSR1)
        eventually(lambda: len(self.told("jumped")), lambda count: count > before, PATIENCE, "a jump of its clock")

    def end(self) -> None:
        """Stop it, and see that it ends as it should: by itself, with nothing to complain about."""
        assert self.process.stop() == 0, self.process.printed()[-4000:]
        told = set().union(*self._lines())
        assert told <= {"ready", "acked", "failed", "handled", "raised", "hangs", "jumped"}

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.process.printed().split("\n")[:-1]
        assert all(line.startswith("{") for line in lines), lines[-40:]  # a complaint is no JSON
        return [json.loads(line) for line in lines]


class Traffic:
    """A sender and readers of one topic."""

    def __init__(self, world: World, folder: Path, topic: str, *readers: str) -> None:
        self._world = world
        self._folder = folder
        self._topic = topic
        self._workers: list[Worker] = []
        self.sender = self.start("sender")
        self.readers = [self.start(role) for role in readers]

    def start(self, role: str) -> Worker:
        command = [sys.executable, "-W", "error", "-m", "tests.client.worker", self._world.addresses, self._topic, role]
        worker = Worker(Process(command, self._folder / f"{role}{len(self._workers)}.out"))
        self._workers.append(worker)
        return worker

    def flows(self) -> None:
        self.sender.tells_more("acked")
        for reader in self.readers:
            reader.tells_more("handled")

    def end(self) -> None:
        """Everything that was acknowledged was handled; nobody hung; failures say what they are."""
        self.sender.end()
        acked = set(self.sender.told("acked"))
        eventually(lambda: acked - self.handled(), lambda missing: not missing, PATIENCE, "acked and not handled")
        for reader in self.readers:
            reader.end()
        for name, code, hint in self.sender.told("failed"):
            assert issubclass(getattr(errors, name), errors.OrbitError), name
            assert isinstance(code, int)
            assert hint, name

    def handled(self) -> set[int]:
        return {number for reader in self.readers for number in reader.told("handled")}

    def kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("faults"))
    yield world
    world.close()


@pytest.fixture
def traffic(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Traffic]:
    """Flowing when the test begins, and brought to its end afterwards."""
    marker = request.node.get_closest_marker("readers")
    traffic = Traffic(world, tmp_path, request.node.name.title().replace("_", "")[:60], *(marker or _READER).args)
    try:
        traffic.flows()
        yield traffic
        traffic.end()
    finally:
        traffic.kill()


_READER = pytest.mark.readers("reader")


def test_a_broker_is_killed_and_comes_back(world: World, traffic: Traffic) -> None:
    world.broker.process.kill()
    try:
        traffic.sender.tells("failed")
    finally:
        world.start_broker()
    traffic.flows()


def test_a_broker_moves_to_another_address(world: World, traffic: Traffic) -> None:
    world.move_broker()
    traffic.flows()


def test_connections_are_reset_in_the_middle_of_frames(world: World, traffic: Traffic) -> None:
    world.proxy.signal(signal.SIGUSR1)
    try:
        eventually(
            world.proxy.printed,
            lambda text: text.count("cut request") >= 5 and text.count("cut answer") >= 5,
            PATIENCE,
            "five resets either way",
        )
    finally:
        world.proxy.signal(signal.SIGHUP)
    traffic.flows()


def test_a_broker_is_slower_than_the_time_limit(world: World, traffic: Traffic) -> None:
    world.proxy.signal(signal.SIGUSR2)
    try:
        traffic.sender.tells("failed")
    finally:
        world.proxy.signal(signal.SIGHUP)
    traffic.flows()


def test_a_broker_stands_still(world: World, traffic: Traffic) -> None:
    world.broker.process.freeze()
    try:
        traffic.sender.tells("failed")
    finally:
        world.broker.process.thaw()
    traffic.flows()


@pytest.mark.readers("raiser")
def test_handlers_raise_and_their_messages_come_again(traffic: Traffic) -> None:
    [reader] = traffic.readers
    assert reader.told("raised")


def test_handlers_hang_and_their_messages_are_taken_over(traffic: Traffic) -> None:
    """What hangs beyond its time limit is delivered again; and what hangs when its program is stopped keeps nobody waiting."""
    hanger = traffic.start("hanger")

    def delivered_again() -> bool:
        hung = hanger.told("hangs")
        return len(set(hung)) < len(hung) or not traffic.handled().isdisjoint(hung)

    eventually(delivered_again, bool, PATIENCE, "a message that hung is delivered again")
    hanger.end()
    hung = set(hanger.told("hangs"))
    eventually(lambda: hung - traffic.handled(), lambda missing: not missing, PATIENCE, "hung and not handled")


def test_clocks_jump(traffic: Traffic) -> None:
    for _ in range(3):
        for worker in (traffic.sender, *traffic.readers):
            worker.jumps()
        traffic.flows()


def test_a_thousand_producers_are_closed_at_once(traffic: Traffic) -> None:
    crowd = traffic.start("crowd")
    crowd.tells("acked")
    assert crowd.told("acked") == [1000]
    assert crowd.process.wait() == 0
    crowd.end()


# ---- name servers, last: those that come back know nothing until the broker registers again


def test_one_name_server_of_two_is_killed(world: World, traffic: Traffic) -> None:
    world.name_servers[0].process.kill()
    try:
        latecomer = traffic.start("reader")  # which may ask the dead one first
        traffic.readers.append(latecomer)
        traffic.flows()
    finally:
        world.restart_name_server(0)


def test_all_name_servers_are_gone_and_sends_go_on(world: World, traffic: Traffic) -> None:
    for server in world.name_servers:
        server.process.kill()
    try:
        traffic.flows()
    finally:
        for number in (0, 1):
            world.restart_name_server(number)
