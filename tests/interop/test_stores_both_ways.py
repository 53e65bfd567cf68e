"""One store directory, served in turns by our broker and by Apache's, stopped and killed in between.

Every life of the directory must serve the bytes that earlier lives served, record by record: ids, offsets, keys, times and all.
Then it writes more: plain, in batches, compressed, delayed, from an IPv6 address, and as large as a message may be.
"""

import base64
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.interop import apache, orbit, wire
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import JavaClient
from tests.interop.java import JavaBuild
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually, free_port

pytestmark = INTEROP

NAME: Final = "both"
CLUSTER: Final = "both-cluster"
TOPIC: Final = "BothWays"
DELAYED: Final = "BothWaysDelayed"
QUEUES: Final = 4
MAX_BODY: Final = 4 << 20
PULL, QUERY_BY_KEY, SEND = 11, 12, 310
FILES: Final[dict[str, str | int]] = {
    "mappedFileSizeCommitLog": 6 << 20,  # room for one message of the largest size
    "mappedFileSizeConsumeQueue": 20 * 40,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 100,
    # Without it Apache's broker forgets, after a kill, the keys in the index file that was not full yet.
    "messageIndexSafe": "true",
}

# (queue id, queue offset) -> the record's bytes
Records = dict[tuple[int, int], bytes]


@dataclass(slots=True)
class Ledger:
    """What was sent, and what has been seen of it."""

    texts: dict[str, str] = field(default_factory=dict)  # key -> what the body begins with
    delayed: set[str] = field(default_factory=set)
    records: Records = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)  # keys that the lasting group was given


class Store:
    """The directory, and whoever serves it now. All lives have one address, because it stands in message ids."""

    def __init__(self, folder: Path, java: JavaBuild, name_server: str) -> None:
        self._folder = folder
        self._java = java
        self._name_server = name_server
        self._port = free_port(-2, 1)
        self._lives = 0
        self.broker: Broker | None = None

    @property
    def address(self) -> str:
        assert self.broker is not None
        return self.broker.address

    def open(self, whose: str) -> None:
        self._lives += 1
        home = self._folder / f"life-{self._lives}-{whose}"
        settings: dict[str, str | int] = {
            **FILES,
            "brokerClusterName": CLUSTER,
            "storePathRootDir": str(self._folder / "store"),
            "storePathCommitLog": str(self._folder / "store" / "commitlog"),
            "listenPort": self._port,
        }
        if whose == "ours":
            self.broker = orbit.start_broker(home, self._name_server, NAME, settings, self._port)
        else:
            plan = BrokerPlan(name=NAME, cluster=CLUSTER, name_servers=[self._name_server], settings=settings)
            self.broker = apache.start_broker(self._java, home, plan)

    def end(self, how: str) -> None:
        assert self.broker is not None
        if how == "killed":
            self.broker.process.kill()
        else:
            self.broker.process.stop()
        assert (self._folder / "store" / "abort").exists() == (how == "killed")


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"], indirect=True)
def test_a_store_served_in_turns(
    tmp_path: Path,
    java: JavaBuild,
    orbit_nameserver: StartNameServer,
    java_client: Callable[[bool], JavaClient],
) -> None:
    name_server = orbit_nameserver().address
    store = Store(tmp_path, java, name_server)
    client = java_client(False)
    ledger = Ledger()
    try:
        for life, (whose, how) in enumerate(
            [
                ("ours", "stopped"),
                ("Apache's", "stopped"),
                ("ours", "killed"),
                ("Apache's", "killed"),
                ("ours", "stopped"),
                ("Apache's", "stopped"),
            ],
            1,
        ):
            store.open(whose)
            check_records(store.address, ledger)
            if life == 1:
                client.open_producer("producer", name_server)
                client.open_producer("uncompressed", name_server, compressMsgBodyOverHowmuch=2 * MAX_BODY)
            write(client, store.address, ledger, life, ours=whose == "ours")
            check_consumer(client, name_server, ledger, life)
            check_delayed(store.address, ledger)
            check_records(store.address, ledger)
            check_keys(store.address, ledger)
            store.end(how)
        store.open("ours")
        check_records(store.address, ledger)
        client.open_push_consumer("chosen", name_server, TOPIC, group="chosen", tags="plain || batch")
        wanted = sorted(key for key in ledger.texts if "plain" in key or "batch" in key)
        assert sorted(str(message.keys) for message in client.received("chosen", len(wanted))) == wanted
    finally:
        if store.broker is not None:
            store.broker.process.kill()


# ---- writing


def write(client: JavaClient, address: str, ledger: Ledger, life: int, *, ours: bool) -> None:
    def message(kind: str, number: int, filler: str = "") -> dict[str, object]:
        key = f"{life}-{kind}-{number}"
        ledger.texts[key] = key
        return {"text": f"{key} {filler}", "keys": key, "tag": kind}

    client.send("producer", TOPIC, [message("plain", i) for i in range(20)])
    client.send("producer", TOPIC, [message("batch", i) for i in range(5)], mode="batch")
    client.send("producer", TOPIC, [message("compressed", i, "again and " * 2000) for i in range(3)])
    largest = random.Random(life).randbytes(MAX_BODY)
    key = f"{life}-largest"
    ledger.texts[key] = ""
    body = base64.b64encode(largest).decode()
    client.send("uncompressed", TOPIC, [{"bytes": body, "keys": key, "tag": "largest"}])
    key = f"{life}-ipv6"
    ledger.texts[key] = key
    send_from_ipv6(address, key, ours=ours)
    for level in (1, 2):
        text = f"{life}-delayed-{level}"
        ledger.delayed.add(text)
        client.send("producer", DELAYED, [{"text": text, "delayLevel": level}])


def send_from_ipv6(address: str, key: str, *, ours: bool) -> None:
    """Ours listens on 127.0.0.1 alone, and hears of the sender's address by the PROXY protocol; Apache's on all addresses."""
    port = int(address.rsplit(":", 1)[1])
    fields = {
        "a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": f"KEYS\x01{key}\x02UNIQ_KEY\x01{key}\x02",
    }  # fmt: skip
    preamble = f"PROXY TCP6 2001:db8::7 2001:db8::1 50000 {port}\r\n".encode() if ours else b""
    with socket.create_connection(("127.0.0.1" if ours else "::1", port), 10) as connection:
        connection.sendall(preamble + wire.encode(SEND, fields, f"{key} ".encode()))
        frame = wire.read_frame(connection)
    assert frame is not None
    assert wire.decode(frame).code == 0


# ---- reading


def check_records(address: str, ledger: Ledger) -> None:
    """What was ever served is served again, byte by byte; what is new is taken down."""
    records = {
        (queue_id, offset): record for queue_id in range(QUEUES) for offset, record in pull(address, TOPIC, queue_id)
    }
    different = [place for place, record in ledger.records.items() if records.get(place) != record]
    assert not different
    for queue_id in range(QUEUES):
        offsets = sorted(offset for queue, offset in records if queue == queue_id)
        assert offsets == list(range(len(offsets)))
    assert len(records) == len(ledger.texts)
    ledger.records = records


def pull(address: str, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
    """Every record of a queue, with its offset."""
    records: list[tuple[int, bytes]] = []
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30) as connection:
        while True:
            fields = {
                "consumerGroup": "raw", "topic": topic, "queueId": str(queue_id), "queueOffset": str(len(records)),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0",
            }  # fmt: skip
            connection.sendall(wire.encode(PULL, fields))
            frame = wire.read_frame(connection)
            assert frame is not None
            answer = wire.decode(frame)
            if answer.code in (17, 19):  # no such topic yet, no more messages
                return records
            assert answer.code == 0, answer
            records += [(struct.unpack_from(">q", record, 20)[0], record) for record in split(answer.body)]


def split(body: bytes) -> list[bytes]:
    records = []
    while body:
        (size,) = struct.unpack_from(">i", body)
        records.append(body[:size])
        body = body[size:]
    return records


def check_consumer(client: JavaClient, name_server: str, ledger: Ledger, life: int) -> None:
    """A Java group that lasts is given what is new. After a kill it may be given again what it had no time to commit."""
    name = f"lasting-{life}"
    client.open_push_consumer(name, name_server, TOPIC, group="lasting")
    wanted = ledger.texts.keys() - ledger.consumed
    given: set[str] = set()
    while not wanted <= given:
        received = client.received(name, 1, seconds=30)
        assert received, f"not received: {sorted(wanted - given)}"
        for message in received:
            assert message.keys is not None
            assert message.body.decode(errors="replace").startswith(ledger.texts[message.keys])
            if message.tag == "largest":
                assert len(message.body) == MAX_BODY
            given.add(message.keys)
    ledger.consumed |= given
    client.close_one(name)


def check_delayed(address: str, ledger: Ledger) -> None:
    """Delivered at least once: a kill may make the last ones come again."""

    def delivered() -> set[str]:
        return {body_of(record) for queue_id in range(QUEUES) for _, record in pull(address, DELAYED, queue_id)}

    eventually(delivered, lambda seen: seen == ledger.delayed, 60, "delayed messages", every=0.3)


def body_of(record: bytes) -> str:
    (size,) = struct.unpack_from(">i", record, 84)
    return record[88 : 88 + size].decode()


def check_keys(address: str, ledger: Ledger) -> None:
    by_key = {f"{life}-{kind}": None for life in range(1, 9) for kind in ("plain-7", "batch-3", "largest", "ipv6")}
    served = set(ledger.records.values())
    for key in by_key.keys() & ledger.texts.keys():
        fields = {"topic": TOPIC, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        answer = wire.ask(address, QUERY_BY_KEY, fields)
        assert answer.code == 0, (key, answer)
        found = [record for record in split(answer.body) if f"KEYS\x01{key}\x02".encode() in record]
        assert found, key
        assert set(found) <= served
