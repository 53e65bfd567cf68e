"""The Java consumer while a master is dead: it reads and commits at the slave in its place, and the master takes the offsets back.

Ours and Apache's in either role: the one that acts, and the one that comes back.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from orbitmq import fastjson
from tests.interop import apache, orbit, wire
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import JavaClient
from tests.interop.java import JavaBuild
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually, free_port

pytestmark = INTEROP

NAME: Final = "acted-for"
CLUSTER: Final = "acting-cluster"
TOPIC: Final = "Acted"
GROUP: Final = "acted-group"
MESSAGES: Final = 30
UPDATE_TOPIC: Final = 17
ALL_OFFSETS: Final = 43
MASTER: Final[dict[str, str | int]] = {"brokerId": 0, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE: Final[dict[str, str | int]] = {"brokerId": 1, "brokerRole": "SLAVE"}
SHARED: Final[dict[str, str | int]] = {
    "brokerClusterName": CLUSTER,
    "slaveReadEnable": "true",
    "enableSlaveActingMaster": "true",
    "registerNameServerPeriod": 10_000,
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 1 << 19,
    "flushConsumerOffsetInterval": 500,
    "brokerNotActiveTimeoutMillis": 60_000,  # a machine that stands still has not died
}


class Pair:
    """Brokers of one name; started again, each is where it was."""

    def __init__(self, java: JavaBuild, folder: Path, name_server: str, stack: ExitStack) -> None:
        self._java = java
        self._folder = folder
        self._name_server = name_server
        self._stack = stack
        self._ports: dict[str, int] = {}

    def start(self, whose: str, role: dict[str, str | int]) -> Broker:
        folder = self._folder / f"{whose}-{role['brokerId']}"
        port = self._ports.setdefault(folder.name, free_port(-2, 1))
        settings = {**SHARED, **role, "listenPort": port}
        if whose == "ours":
            broker = orbit.start_broker(folder, self._name_server, NAME, settings, port)
        else:
            servers = [self._name_server]
            if not role["brokerId"] and folder.exists():
                # Only then it asks who acted for it, and nobody may make it register before it has.
                settings |= {"totalReplicas": 2, "namesrvAddr": self._name_server}
                servers = []
            plan = BrokerPlan(name=NAME, cluster=CLUSTER, name_servers=servers, settings=settings)
            broker = apache.start_broker(self._java, folder, plan)
        self._stack.callback(broker.process.kill)
        return broker


def committed(broker: Broker) -> int:
    """Over all queues of the topic."""
    table = fastjson.loads(wire.ask(broker.address, ALL_OFFSETS).body)["offsetTable"]  # Java's keys are bare numbers
    return sum(table.get(f"{TOPIC}@{GROUP}", {}).values())


def until_committed(broker: Broker, count: int, what: str) -> None:
    eventually(lambda: committed(broker), lambda found: found == count, 90, what, every=0.2)


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
@pytest.mark.parametrize(("masters", "slaves"), [("ours", "ours"), ("ours", "apaches"), ("apaches", "ours")])
def test_a_java_consumer_goes_on_where_it_was_through_the_death_and_the_return_of_a_master(
    masters: str,
    slaves: str,
    tmp_path: Path,
    java: JavaBuild,
    orbit_nameserver: StartNameServer,
    java_client: Callable[[bool], JavaClient],
) -> None:
    name_server = orbit_nameserver({"supportActingMaster": "true"}).address
    with ExitStack() as stack:
        pair = Pair(java, tmp_path, name_server, stack)
        master, slave = pair.start(masters, MASTER), pair.start(slaves, SLAVE)
        queues = {"topic": TOPIC, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        topic = {
            **queues,
            "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        assert wire.ask(master.address, UPDATE_TOPIC, topic).code == 0
        client = java_client(False)
        sent = 0

        def send(producer: str, count: int) -> list[str]:
            nonlocal sent
            client.open_producer(producer, name_server)
            eventually(
                lambda: client.send(producer, "Probe", [{"text": "?"}], may_fail=True)[0],
                lambda receipt: receipt.get("status") == "SEND_OK",
                90,
                "the master is registered, and the slave connected",
                every=0.5,
            )
            texts = [f"{sent + number}" for number in range(count)]
            receipts = client.send(producer, TOPIC, [{"text": text} for text in texts])
            assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}
            client.close_one(producer)
            sent += count
            return texts

        def consumed(consumer: str, count: int) -> list[str]:
            client.open_push_consumer(consumer, name_server, TOPIC, group=GROUP)
            return sorted((message.body.decode() for message in client.received(consumer, count, 90)), key=int)

        assert consumed("before", 0) == []
        first = send("first", MESSAGES)
        assert sorted((each.body.decode() for each in client.received("before", MESSAGES, 90)), key=int) == first
        until_committed(master, sent, "the consumer commits to its master")
        client.close_one("before")
        until_committed(slave, sent, "the slave knows what was committed")
        second = send("second", MESSAGES)

        master.process.kill()
        assert consumed("meanwhile", MESSAGES) == second  # from the slave, and nothing again
        until_committed(slave, sent, "the consumer commits to the slave")
        client.close_one("meanwhile")

        master = pair.start(masters, MASTER)
        until_committed(master, sent, "the master takes the offsets back")
        third = send("third", 5)
        assert consumed("after", 5) == third
        client.close_one("after")
