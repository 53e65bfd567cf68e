"""Leases (POP): Apache's client on our broker and on Apache's, the same calls and the same answers; and one store served by both."""

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from orbitmq.sync import connect
from tests.interop import apache, orbit, wire
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import JavaClient
from tests.interop.java import JavaBuild, build
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually
from tests.interop.test_stores_both_ways import CLUSTER, NAME, Store

pytestmark = INTEROP

GROUP: Final = "LeaseGroup"
PATIENCE_SECONDS: Final = 60.0
POP, ACK, CHANGE_INVISIBLE, NOTIFICATION, POLLING_INFO, PEEK = 200050, 200051, 200053, 200054, 200055, 200052
UPDATE_BROKER_CONFIG, MAX_OFFSET, UPDATE_GROUP, DELETE_TOPIC = 25, 30, 200, 215


@dataclass(frozen=True, slots=True)
class Leased:
    """A leased message, as Apache's client gave it."""

    text: str
    tag: str | None
    attempt: int
    handle: str
    topic: str

    @property
    def parts(self) -> list[str]:
        return self.handle.split(" ")

    @property
    def real_topic(self) -> str:
        return {"0": self.topic, "1": f"%RETRY%{GROUP}_{self.topic}", "2": f"%RETRY%{GROUP}+{self.topic}"}[
            self.parts[4]
        ]

    def seen(self) -> tuple[object, ...]:
        """What must be the same on both sides: all but times and names."""
        start, _, invisible, _, kind, _, queue, offset = self.parts
        return (self.text, self.tag, self.attempt, start, invisible, kind, queue, offset)


class Consumer:
    """Apache's calls to one broker."""

    def __init__(self, client: JavaClient, admin: str, broker: Broker) -> None:
        self.broker = broker
        self._client = client
        self._admin = admin

    def _call(self, action: str, header: dict[str, object]) -> Any:
        return self._client.call(
            "Lease",
            name=self._admin,
            action=action,
            broker=self.broker.address,
            brokerName=self.broker.name,
            header={"consumerGroup": GROUP, **header},
            seconds=120.0,
        )

    def pop(self, topic: str, count: int = 32, **changes: object) -> tuple[str, int, list[Leased]]:
        header: dict[str, object] = {
            "topic": topic, "queueId": -1, "maxMsgNums": count, "invisibleTime": 30_000, "pollTime": 0,
            "bornTime": int(time.time() * 1000), "initMode": 0, "expType": "TAG", "exp": "*", **changes,
        }  # fmt: skip
        answer = self._call("pop", header)
        leased = [
            Leased(
                base64.b64decode(message["bytes"]).decode(),
                message.get("tag"),
                message["attempt"],
                message["properties"]["POP_CK"],
                topic,
            )
            for message in answer["messages"]
        ]
        return answer["status"], answer["rest"], leased

    def pop_until(self, topic: str, count: int, **changes: object) -> list[Leased]:
        """So many messages, in as many pops as it takes."""
        found: list[Leased] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += self.pop(topic, pollTime=2000, **changes)[2]  # type: ignore[arg-type]
        return found

    def ack(self, leased: Leased) -> str:
        status: str = self._call("ack", self._settled(leased))["status"]
        return status

    def ack_batch(self, leased: list[Leased]) -> str:
        handles = [each.handle for each in leased]
        status: str = self._call("batchAck", {"topic": leased[0].topic, "handles": handles})["status"]
        return status

    def extend(self, leased: Leased, invisible_ms: int) -> Leased:
        answer = self._call("changeInvisible", {**self._settled(leased), "invisibleTime": invisible_ms})
        assert answer["status"] == "OK", answer
        return Leased(leased.text, leased.tag, leased.attempt, answer["handle"], leased.topic)

    def _settled(self, leased: Leased) -> dict[str, object]:
        queue, offset = leased.parts[6:8]
        return {"topic": leased.real_topic, "queueId": int(queue), "offset": int(offset), "extraInfo": leased.handle}

    def codes(self, leased: Leased) -> list[int]:
        """The answers to requests that make no sense, code by code."""
        pop = {
            "consumerGroup": GROUP, "topic": leased.topic, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "1000",
            "pollTime": "0", "bornTime": "0", "initMode": "0",
        }  # fmt: skip
        ack = {
            "consumerGroup": GROUP, "topic": leased.topic, "queueId": "0", "extraInfo": leased.handle, "offset": "0",
        }  # fmt: skip
        requests = [
            (POP, {**pop, "topic": "Nowhere"}),
            (POP, {**pop, "queueId": "77"}),
            (POP, {**pop, "maxMsgNums": "33"}),
            (POP, {**pop, "bornTime": "1"}),
            (POP, {**pop, "exp": "a >", "expType": "SQL92"}),
            (ACK, {**ack, "topic": "Nowhere"}),
            (ACK, {**ack, "queueId": "77"}),
            (ACK, {**ack, "offset": "99999"}),
            (CHANGE_INVISIBLE, {**ack, "invisibleTime": "1000", "offset": "99999"}),
            (CHANGE_INVISIBLE, {**ack, "invisibleTime": "1000", "queueId": "-1"}),
            (NOTIFICATION, {**pop, "topic": "Nowhere"}),
            (POLLING_INFO, {**pop, "queueId": "77"}),
            (PEEK, {**pop, "topic": "Nowhere"}),
        ]
        return [wire.ask(self.broker.address, code, fields).code for code, fields in requests]


@dataclass(frozen=True, slots=True)
class Two:
    client: JavaClient
    name_server: str
    theirs: Consumer
    ours: Consumer

    def both(self) -> Iterator[Consumer]:
        yield self.theirs
        yield self.ours


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Apache's broker and ours behind one name server, each in a cluster of its own, and one Java client for both."""
    folder = tmp_path_factory.mktemp("leases")
    java = build("5.3.3")
    running: list[Callable[[], object]] = []
    try:
        server = orbit.start_name_server(folder / "nameserver")
        running.append(server.process.kill)
        plan = BrokerPlan(name="theirs", cluster="theirs", name_servers=[server.address])
        theirs = apache.start_broker(java, folder / "apache", plan)
        running.append(theirs.process.kill)
        ours = orbit.start_broker(folder / "orbit", server.address, "ours", {"brokerClusterName": "ours"})
        running.append(ours.process.kill)
        client = JavaClient(java, folder / "client")
        running.append(client.close)
        client.open_admin_tool("admin", server.address)
        client.open_producer("producer", server.address)
        consumers = (Consumer(client, "admin", broker) for broker in (theirs, ours))
        yield Two(client, server.address, *consumers)
    finally:
        for end in reversed(running):
            end()


def make_topic(two: Two, consumer: Consumer, topic: str, queues: int = 1) -> None:
    config = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    two.client.ask("admin", "createAndUpdateTopicConfig", consumer.broker.address, config)
    eventually(
        lambda: wire.brokers_of(two.name_server, topic), lambda found: consumer.broker.name in found, 20.0, "the route"
    )


def send(two: Two, topic: str, texts: list[str]) -> None:
    messages = [{"text": text, "tag": tag} for text, tag in zip(texts, itertools.cycle("AB"), strict=False)]
    two.client.send("producer", topic, messages)


def lease_and_settle(two: Two, consumer: Consumer) -> list[object]:
    """The same story on either broker; what was seen of it."""
    topic = f"Leased{consumer.broker.name}"
    make_topic(two, consumer, topic)
    send(two, topic, [f"m{number}" for number in range(8)])
    seen: list[object] = []

    def note(answer: tuple[str, int, list[Leased]]) -> list[Leased]:
        seen.append((answer[0], answer[1], [leased.seen() for leased in answer[2]]))
        return answer[2]

    first = note(consumer.pop(topic, 2))
    tagged = note(consumer.pop(topic, exp="A"))
    note(consumer.pop(topic))
    seen.append([consumer.ack(first[0]), consumer.ack(first[0])])
    extended = consumer.extend(first[1], 1000)
    seen.append(extended.seen())
    seen.append(consumer.ack(first[1]))  # its lease has another handle now
    seen.append(consumer.ack_batch(tagged[:2]))
    last = consumer.extend(tagged[2], 2000)
    seen.append(last.seen())
    again = consumer.pop_until(topic, 2)  # what was given back comes back; nothing else does
    seen.append(sorted((leased.text, leased.tag, leased.attempt, leased.parts[4]) for leased in again))
    seen.append([consumer.ack(leased) for leased in again])
    note(consumer.pop(topic))
    seen.append(consumer.codes(first[0]))
    return seen


def test_apaches_client_sees_the_same_on_both_brokers(two: Two) -> None:
    with ThreadPoolExecutor(2) as threads:  # half of it is waiting
        theirs, ours = threads.map(partial(lease_and_settle, two), two.both())
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert their == our, f"step {number}"
    assert theirs[-4] == [(text, tag, 1, "1") for text, tag in (("m1", "B"), ("m6", "A"))]


def revive_under_both_names(two: Two, consumer: Consumer) -> list[object]:
    """One message comes back by the retry topic of the older name, the next by that of the newer one."""
    topic, broker = f"Renamed{consumer.broker.name}", consumer.broker.address
    make_topic(two, consumer, topic)
    send(two, topic, ["older", "newer"])
    older, newer = consumer.pop(topic, 2)[2]
    consumer.extend(older, 1000)
    place = {"topic": f"%RETRY%{GROUP}_{topic}", "queueId": "0"}
    eventually(
        lambda: wire.ask(broker, MAX_OFFSET, place).fields.get("offset"),
        lambda end: end == "1",
        30.0,
        "the message back",
    )
    assert wire.ask(broker, UPDATE_BROKER_CONFIG, body=b"enableRetryTopicV2=true").code == 0
    try:
        consumer.extend(newer, 1000)
        again = consumer.pop_until(topic, 2)
        seen: list[object] = [sorted((leased.text, leased.attempt, leased.parts[4]) for leased in again)]
        seen.append([consumer.ack(leased) for leased in again])
        seen.append(consumer.pop(topic)[0])
    finally:
        assert wire.ask(broker, UPDATE_BROKER_CONFIG, body=b"enableRetryTopicV2=false").code == 0
    return seen


def test_retry_topics_of_both_names_are_read_alike(two: Two) -> None:
    with ThreadPoolExecutor(2) as threads:
        theirs, ours = threads.map(partial(revive_under_both_names, two), two.both())
    assert ours == theirs
    assert ours[0] == [("newer", 1, "2"), ("older", 1, "1")]


def in_order(two: Two, consumer: Consumer) -> list[object]:
    topic = f"Ordered{consumer.broker.name}"
    make_topic(two, consumer, topic)
    send(two, topic, [f"m{number}" for number in range(5)])
    seen: list[object] = []

    def note(answer: tuple[str, int, list[Leased]]) -> list[Leased]:
        seen.append((answer[0], [leased.seen() for leased in answer[2]]))
        assert all(leased.parts[3] == "999" for leased in answer[2])
        return answer[2]

    first, second = note(consumer.pop(topic, 2, order=True))
    note(consumer.pop(topic, 2, order=True))
    seen.append(consumer.ack(second))
    note(consumer.pop(topic, 2, order=True))
    consumer.extend(first, 1000)
    again = consumer.pop_until(topic, 2, order=True, maxMsgNums=2)
    seen.append([leased.seen() for leased in again])
    seen.append(consumer.ack_batch(again))
    note(consumer.pop(topic, 2, order=True))
    return seen


def test_ordered_leases_are_the_same_on_both_brokers(two: Two) -> None:
    theirs, ours = (in_order(two, consumer) for consumer in two.both())
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert their == our, f"step {number}"


def set_group(broker: Broker, *, enabled: bool) -> None:
    body = json.dumps({"groupName": GROUP, "consumeEnable": enabled}).encode()
    assert wire.ask(broker.address, UPDATE_GROUP, body=body).code == 0


def codes_of_who_waits(two: Two, consumer: Consumer) -> dict[str, list[int]]:
    """The answers to a pop and a notification that wait when what they read is taken away."""
    address, told = consumer.broker.address, {}
    # The deleted one last: Apache's broker forgets who waits for it if it looks after them for the first time just then.
    for what in ("unreadable", "disabled", "fewer queues", "deleted"):
        topic = f"Waited{what.replace(' ', '')}{consumer.broker.name}"
        make_topic(two, consumer, topic, queues=2)
        config = {"topicName": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        queue = {"consumerGroup": GROUP, "topic": topic, "queueId": "1"}
        place = {**queue, "pollTime": "3000", "bornTime": "0"}
        pop = {**place, "maxMsgNums": "1", "invisibleTime": "60000", "initMode": "0"}
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(wire.ask, address, code, of) for code, of in ((POP, pop), (NOTIFICATION, place))]
            number_of = partial(wire.ask, address, POLLING_INFO, queue)
            eventually(number_of, lambda found: found.fields.get("pollingNum") == "1", 20.0, "a pop that waits")
            if what == "deleted":
                assert wire.ask(address, DELETE_TOPIC, {"topic": topic}).code == 0
            elif what == "disabled":
                set_group(consumer.broker, enabled=False)
            else:
                changed = {"perm": 2} if what == "unreadable" else {"readQueueNums": 1}
                two.client.ask("admin", "createAndUpdateTopicConfig", address, {**config, **changed})
            told[what] = [each.result().code for each in waiting]
        set_group(consumer.broker, enabled=True)
    return told


def test_who_waits_when_reading_is_forbidden_hears_the_same_of_both_brokers(two: Two) -> None:
    with ThreadPoolExecutor(2) as threads:
        theirs, ours = threads.map(partial(codes_of_who_waits, two), two.both())
    assert ours == theirs
    assert ours == {"deleted": [17, 17], "unreadable": [16, 16], "disabled": [16, 16], "fewer queues": [29, 29]}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_apaches_push_consumer_leases_what_either_client_sends_to_our_broker(two: Two, orderly: bool) -> None:
    kind = "Orderly" if orderly else "Concurrent"
    topic, group, total = f"Pushed{kind}", f"PopGroup{kind}", 40
    make_topic(two, two.ours, topic, queues=4)
    two.client.ask("admin", "setMessageRequestMode", two.ours.broker.address, topic, group, "POP", 0, 5000)
    names = [f"{kind}-{number}" for number in range(2)]
    for name in names:
        two.client.open_push_consumer(name, two.name_server, topic, group=group, orderly=orderly, clientRebalance=False)
    try:
        send(two, topic, [f"m{number}" for number in range(total // 2)])
        with connect(two.name_server) as ours, ours.producer("PythonProducer") as producer:
            for number in range(total // 2, total):
                producer.send(topic, f"m{number}")
        received: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(set(received)) < total and time.monotonic() < deadline:
            for name in names:
                received += [message.body.decode() for message in two.client.received(name, 1, 0.5)]
        assert sorted(received) == sorted(f"m{number}" for number in range(total))
    finally:
        for name in names:
            two.client.close_one(name)


@pytest.mark.parametrize(("first", "then"), [("ours", "Apache's"), ("Apache's", "ours")])
@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
def test_the_other_broker_goes_on_with_the_leases_of_a_store(
    tmp_path: Path,
    java: JavaBuild,
    orbit_nameserver: StartNameServer,
    java_client: Callable[[bool], JavaClient],
    first: str,
    then: str,
) -> None:
    """Killed while leases are open: what was acknowledged stays so, the rest comes back, by the handles of before."""
    name_server = orbit_nameserver().address
    store = Store(tmp_path, java, name_server)
    client = java_client(False)
    topic = "LeasedBothWays"
    try:
        store.open(first)
        assert store.broker is not None
        client.open_admin_tool("admin", name_server)
        client.open_producer("producer", name_server)
        consumer = Consumer(client, "admin", store.broker)
        two = Two(client, name_server, consumer, consumer)
        make_topic(two, consumer, topic)
        send(two, topic, [f"m{number}" for number in range(6)])
        leased = consumer.pop_until(topic, 6, invisibleTime=10_000)
        assert [each.text for each in leased] == [f"m{number}" for number in range(6)]
        assert consumer.ack(leased[0]) == "OK"
        assert consumer.ack_batch(leased[1:3]) == "OK"
        leased[3] = consumer.extend(leased[3], 60_000)
        # The group's position is saved every five seconds; what was leased since would simply be leased again.
        saved = tmp_path / "store" / "config" / "consumerOffset.json"
        eventually(
            lambda: saved.exists() and f"{topic}@{GROUP}" in saved.read_text(),
            bool,
            PATIENCE_SECONDS,
            "a saved position",
        )
        store.end("killed")
        store.open(then)
        consumer = Consumer(client, "admin", store.broker)
        assert store.broker.name == NAME
        assert store.broker.cluster == CLUSTER or then == "ours"
        assert consumer.ack(leased[3]) == "OK"
        again = consumer.pop_until(topic, 2, invisibleTime=60_000)
        assert sorted((each.text, each.attempt) for each in again) == [("m4", 1), ("m5", 1)]
        assert consumer.pop(topic, pollTime=3000)[2] == []
    finally:
        if store.broker is not None:
            store.broker.process.kill()
