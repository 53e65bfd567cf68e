"""A master of ours with Apache's slave, and the reverse, on the same two directories: roles are exchanged between the lives.

Sends wait for the slave (SYNC_MASTER, two copies), so each that succeeds is on both; in the end both logs are the same bytes.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.interop import apache, orbit, wire
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import JavaClient, MqAdmin
from tests.interop.java import JavaBuild
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually, free_port

pytestmark = INTEROP

NAME: Final = "pair"
CLUSTER: Final = "pair-cluster"
TOPIC: Final = "Pair"
RUNTIME_INFO: Final = 28
FILE_BYTES: Final = 1 << 20
MESSAGES: Final = 40
MASTER: Final[dict[str, str | int]] = {"brokerId": 0, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE: Final[dict[str, str | int]] = {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": "true"}


@dataclass(frozen=True, slots=True)
class Pair:
    java: JavaBuild
    folder: Path
    name_server: str

    @contextmanager
    def life(self, number: int, *, ours_is_master: bool) -> Iterator[tuple[Broker, Broker]]:
        """Ours and Apache's, master first to start; both stop in the end."""
        roles = (MASTER, SLAVE) if ours_is_master else (SLAVE, MASTER)
        with ExitStack() as stack:
            if ours_is_master:
                ours = self._ours(number, roles[0])
                stack.callback(ours.process.kill)
            apaches = self._apaches(number, roles[1])
            stack.callback(apaches.process.kill)
            if not ours_is_master:
                ours = self._ours(number, roles[0])
                stack.callback(ours.process.kill)
            yield ours, apaches
            for broker in (apaches, ours) if ours_is_master else (ours, apaches):
                broker.process.stop()

    def _ours(self, number: int, role: dict[str, str | int]) -> Broker:
        port = free_port(-2, 1)
        settings = {**self._settings("ours"), **role, "listenPort": port}
        return orbit.start_broker(self.folder / f"ours-{number}", self.name_server, NAME, settings, port)

    def _apaches(self, number: int, role: dict[str, str | int]) -> Broker:
        settings = {**self._settings("apaches"), **role}
        plan = BrokerPlan(name=NAME, cluster=CLUSTER, name_servers=[self.name_server], settings=settings)
        return apache.start_broker(self.java, self.folder / f"apaches-{number}", plan)

    def _settings(self, whose: str) -> dict[str, str | int]:
        store = self.folder / "stores" / whose
        return {
            "brokerClusterName": CLUSTER,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "mappedFileSizeCommitLog": FILE_BYTES,
            "maxMessageSize": FILE_BYTES // 2,
            "registerNameServerPeriod": 10_000,
        }

    def log(self, whose: str, end: int) -> bytes:
        files = sorted((self.folder / "stores" / whose / "commitlog").glob("0*"))
        start = int(files[0].name)
        return b"".join(file.read_bytes() for file in files)[: end - start]


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"], indirect=True)
def test_roles_are_exchanged_between_ours_and_apaches(
    tmp_path: Path, java: JavaBuild, orbit_nameserver: StartNameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    pair = Pair(java, tmp_path, orbit_nameserver().address)
    client = java_client(False)
    sent: list[str] = []
    for number, ours_is_master in enumerate([True, False] if java.release == "5.3.3" else [False, True]):
        with pair.life(number, ours_is_master=ours_is_master) as (ours, apaches):
            producer = f"producer-{number}"  # a new one: the old knows the old addresses for half a minute
            client.open_producer(producer, pair.name_server)
            wait_for_the_slave(client, producer)
            texts = [f"{number}-{i} " + "x" * 20_000 for i in range(MESSAGES)]
            receipts = client.send(producer, TOPIC, [{"text": text} for text in texts])
            assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}
            sent += texts
            end = same_end(ours, apaches)
            assert pair.log("ours", end) == pair.log("apaches", end)
            client.open_push_consumer(f"consumer-{number}", pair.name_server, TOPIC, group=f"group-{number}")
            received = [message.body.decode() for message in client.received(f"consumer-{number}", len(sent))]
            assert sorted(received) == sorted(sent)
            if java.release == "5.3.3":  # 4.9 knows no such question
                check_ha_status(java, tmp_path / f"mqadmin-{number}", ours, apaches, ours_is_master=ours_is_master)
            client.close_one(f"consumer-{number}")
            client.close_one(producer)


def check_ha_status(java: JavaBuild, folder: Path, ours: Broker, apaches: Broker, *, ours_is_master: bool) -> None:
    """Each side's tool asks the other's broker, and both roles are told as they are."""
    master, slave = (ours, apaches) if ours_is_master else (apaches, ours)
    theirs = MqAdmin(java, folder)
    try:
        asked = {broker.address: str(theirs.run("haStatus", "-b", broker.address)) for broker in (master, slave)}
    finally:
        theirs.close()
    for broker in (master, slave):
        command = [sys.executable, "-m", "orbitmq", "mqadmin", "haStatus", "-b", broker.address]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for text in (printed, asked[broker.address]):
            end = log_end(broker.address)
            if broker is master:
                assert f"#MasterCommitLogMaxOffset\t{end}" in text
                assert "#SlaveNum\t1" in text
                assert "#InSyncSlaveNum\t1" in text
                assert re.search(rf"(?m)^127\.0\.0\.1:\d+ .*\b{end}\b.*\b0\b.*\bOK\b", text), text
            else:
                assert f"#CommitLogMaxOffset\t{end}" in text
                assert f"#MasterAddr\t{_ha_address(master)}" in text, text


def _ha_address(broker: Broker) -> str:
    host, _, port = broker.address.rpartition(":")
    return f"{host}:{int(port) + 1}"


def wait_for_the_slave(client: JavaClient, producer: str) -> None:
    """Until then a send is stored on one side alone, and says so."""
    eventually(
        lambda: client.send(producer, "Probe", [{"text": "?"}])[0]["status"],
        lambda status: status == "SEND_OK",
        90,
        "the slave is connected",
        every=0.5,
    )


def same_end(ours: Broker, apaches: Broker) -> int:
    """Where both logs end, once they end at one place."""
    ends = eventually(
        lambda: {log_end(ours.address), log_end(apaches.address)}, lambda ends: len(ends) == 1, 60, "equally long logs"
    )
    return ends.pop()


def log_end(address: str) -> int:
    answer = wire.ask(address, RUNTIME_INFO)
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])
