"""One store directory, used by our store and by Apache's broker in turn: each goes on where the other stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orbitmq.message.batch import BatchMember
from orbitmq.message.compression import compress
from orbitmq.message.hosts import pack_host
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_records
from orbitmq.message.sysflags import COMPRESSED, COMPRESSION_ZLIB
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.json_file import encode_table
from orbitmq.storage.store import Store
from orbitmq.storage.tables import TOPICS, TopicConfig, TopicTable
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP

pytestmark = INTEROP

TOPIC = "BothWays"
QUEUES = 4
STORE_HOST = pack_host("127.0.0.1", 10_911)
BORN_HOST = pack_host("127.0.0.1", 50_000)
BORN_HOST_IPV6 = pack_host("::1", 50_000)
MAX_BODY = 4 << 20

# Where a message is, and what it says.
Place = tuple[int, int]


@dataclass(slots=True)
class Ledger:
    """Every message that must be found, by queue and offset."""

    bodies: dict[Place, bytes] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)
    delayed: list[bytes] = field(default_factory=list)


def open_ours(directory: Path) -> Store:
    """With the file sizes that `start_broker` gives Apache's broker."""
    config = StorageConfig(
        directory=directory,
        segment_bytes=16 << 20,
        queue_file_bytes=6000 * 20,
        index_slots=1000,
        index_entries=4000,
        prepare_next_segment=False,
    )
    return Store(config, STORE_HOST)


def write_ours(store: Store, ledger: Ledger, round_number: int) -> None:
    """One of everything: plain, tagged, IPv6, compressed, a batch, as large as allowed, and one that is delayed."""
    now_ms = store.clock.now_ms()

    def append(
        queue_id: int, body: bytes, stored: bytes | None = None, sys_flag: int = 0, host: bytes = BORN_HOST
    ) -> None:
        key = f"ours-{round_number}-{len(ledger.bodies)}"
        properties = encode_properties({"KEYS": key, "TAGS": "ours", "UNIQ_KEY": f"U{key}", "WAIT": "true"})
        appended = store.append(TOPIC, queue_id, stored or body, properties, now_ms, host, 0, sys_flag)
        ledger.bodies[(queue_id, appended.queue_offset)] = body
        ledger.keys[key] = (queue_id, appended.queue_offset)

    for number in range(200):
        append(number % QUEUES, b"plain %d of round %d" % (number, round_number))
    append(0, b"from afar", host=BORN_HOST_IPV6)
    append(1, b"squeezed" * 1000, compress(b"squeezed" * 1000), COMPRESSED | COMPRESSION_ZLIB)
    append(2, b"%d" % round_number * MAX_BODY)
    members = [BatchMember(b"member %d of round %d" % (number, round_number)) for number in range(5)]
    batch = store.append_batch(TOPIC, 3, members, b"CLUSTER\x01c\x02", now_ms, BORN_HOST)
    for number, member in enumerate(members):
        ledger.bodies[(3, batch.queue_offset + number)] = member.body
    real = encode_properties({"DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "0"})
    late = b"late in round %d" % round_number
    store.append("SCHEDULE_TOPIC_XXXX", 0, late, real, now_ms, BORN_HOST)
    ledger.delayed.append(late)


def assert_ours(store: Store, ledger: Ledger) -> None:
    """Everything in the ledger is where it belongs; every queue is dense; every key is found."""
    assert store.recovered.damages == []
    found: dict[Place, bytes] = {}
    for queue_id in range(QUEUES):
        low, high = store.queue_range(TOPIC, queue_id)
        at = low
        while at < high:
            result = store.read(TOPIC, queue_id, at)
            for message in (message for buffer in result.buffers for message in decode_records(buffer)):
                assert message.queue_offset == at
                found[(queue_id, at)] = message.body
                at += 1
    squeezed = {place for place, body in ledger.bodies.items() if body.startswith(b"squeezed")}
    for place, body in ledger.bodies.items():
        assert found[place] == body or place in squeezed
    assert {body for place, body in found.items() if place not in ledger.bodies} <= set(ledger.delayed)
    for key, (queue_id, offset) in ledger.keys.items():
        records = [message for record in store.find_by_key(TOPIC, key).records for message in decode_records(record)]
        assert (queue_id, offset) in {(message.queue_id, message.queue_offset) for message in records}


def let_apache_serve(client: JavaClient, name_server: str, ledger: Ledger, round_number: int) -> None:
    """A Java consumer gets every message; a Java producer adds some."""
    consumer = f"all{round_number}"
    client.open_pull_consumer(consumer, name_server, TOPIC)
    got: dict[Place, bytes] = {}
    for _ in range(12):
        missing = len(ledger.bodies.keys() - got.keys()) + len(set(ledger.delayed) - set(got.values()))
        if not missing:
            break
        messages = client.poll(consumer, missing, seconds=10)
        got |= {(message.queue, message.offset): message.body for message in messages}
    client.close_one(consumer)
    delayed = {place: body for place, body in got.items() if body in ledger.delayed}
    # A killed broker delivers a delayed message again: how far it was is saved every ten seconds only.
    assert set(delayed.values()) == set(ledger.delayed)
    plain = {place: body for place, body in got.items() if place not in delayed}
    assert plain.keys() == ledger.bodies.keys()
    # Places, not bodies: a difference of four megabytes is no help to anybody.
    assert [place for place, body in ledger.bodies.items() if plain[place] != body] == []

    producer = f"producer{round_number}"
    client.open_producer(producer, name_server)
    for number in range(8):
        key = f"apache-{round_number}-{number}"
        (receipt,) = client.send(producer, TOPIC, [{"text": key, "keys": key, "tag": "apache"}])
        ledger.bodies[(receipt["queue"], receipt["offset"])] = key.encode()
        ledger.keys[key] = (receipt["queue"], receipt["offset"])
    client.close_one(producer)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_each_goes_on_where_the_other_stopped(
    killed: bool,
    tmp_path: Path,
    orbit_nameserver: StartNameServer,
    apache_broker: Callable[[BrokerPlan], Broker],
    java_client: Callable[[bool], JavaClient],
) -> None:
    directory = tmp_path / "shared"
    topics = TopicTable(
        topic_config_table={TOPIC: TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)}
    )
    LocalDisk().replace(directory / "config" / TOPICS, encode_table(topics))
    name_server = orbit_nameserver().address
    client = java_client(False)
    ledger = Ledger()
    for round_number in range(2):
        store = open_ours(directory)
        assert_ours(store, ledger)
        write_ours(store, ledger, round_number)
        store.dispatch()
        if killed:
            store.abandon()
        else:
            store.close()
        settings: dict[str, str | int] = {
            "storePathRootDir": str(directory),
            "storePathCommitLog": str(directory / "commitlog"),
        }
        plan = BrokerPlan(name="shared", cluster="shared", name_servers=[name_server], settings=settings)
        broker = apache_broker(plan)
        let_apache_serve(client, name_server, ledger, round_number)
        if killed:
            broker.process.kill()
        else:
            broker.process.stop()
    store = open_ours(directory)
    assert_ours(store, ledger)
    store.close()
