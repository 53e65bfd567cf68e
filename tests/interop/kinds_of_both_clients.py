"""Kinds of messages that one client sends and the other reads: SQL92 filters, order, broadcasting, namespaces, light queues.

As `both_clients.py`: test modules import these and bring the fixtures. Their brokers have `enablePropertyFilter`, `enableLmq` and
`enableMultiDispatch` switched on.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from orbitmq import Client, QueueRef, ReceivedMessage, Sql, connect
from tests.client.scripted import eventually
from tests.client.suite import collecting, until_routed
from tests.interop.drivers import JavaClient, Received

_FILTER = "price BETWEEN 5 AND 10 AND region IN ('eu') AND NOT (price = 7) OR note IS NOT NULL"
_CHOSEN = [5, 9, 11]
_LIGHT = ("%LMQ%first", "%LMQ%second")


def _priced() -> list[dict[str, str]]:
    """Properties of twelve messages."""
    found = [{"price": str(number), "region": "eu" if number % 2 else "us"} for number in range(12)]
    found[11]["note"] = "n"
    return found


async def test_java_reads_every_kind_that_python_sends(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java, space, light = java_client(False), f"s{topic[-20:]}", tuple(f"{name}{topic}" for name in _LIGHT)
    await until_routed(client, topic)
    async with client.producer("PythonProducer") as producer:
        for number, properties in enumerate(_priced()):
            await producer.send(topic, str(number), tag="sql", properties=properties)
        for number in range(30):
            await producer.send(topic, f"{number % 3} {number:02}", tag="ordered", order_key=f"user-{number % 3}")
        for number in range(5):
            await producer.send(topic, str(number), tag="cast")
        for names in (light, light[1:]):
            receipt = await producer.send(topic, ",".join(names), properties={"INNER_MULTI_DISPATCH": ",".join(names)})
    async with connect(name_server, namespace=space) as inside, inside.producer("PythonProducer") as producer:
        await producer.send(topic, "inside")

    def read() -> None:
        java.open_push_consumer("sql", name_server, topic, group=f"Sql{topic}", sql=_FILTER)
        java.open_push_consumer("ordered", name_server, topic, group=f"Ordered{topic}", tags="ordered", orderly=True)
        java.open_push_consumer("spaced", name_server, topic, group=f"Spaced{topic}", namespace=space)
        for name in ("one", "two"):
            java.open_push_consumer(name, name_server, topic, group=f"Cast{topic}", tags="cast", broadcasting=True)
        broker = receipt.queue.broker_name
        java.open_pull_consumer("all", name_server, topic, instanceName="light")
        for name in light:
            java.open_pull_consumer(name, name_server, name, group=name, broker=broker, instanceName="light")
        assert sorted(int(message.body) for message in java.received("sql", len(_CHOSEN))) == _CHOSEN
        _assert_in_order((message.queue, message.body.decode()) for message in java.received("ordered", 30))
        assert _bodies(java.received("spaced", 1)) == ["inside"]
        for name in ("one", "two"):
            assert _bodies(java.received(name, 5)) == ["0", "1", "2", "3", "4"]
        assert _bodies(java.poll(light[0], 1)) == [",".join(light)]
        assert _bodies(java.poll(light[1], 2)) == sorted([",".join(light), light[1]])

    await asyncio.to_thread(read)


async def test_python_reads_every_kind_that_java_sends(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient], tmp_path: Path
) -> None:
    java, space, light = java_client(False), f"s{topic[-20:]}", tuple(f"{name}{topic}" for name in _LIGHT)
    await until_routed(client, topic)

    def send() -> str:
        java.open_producer("producer", name_server)
        java.open_producer("inside", name_server, namespace=space)
        priced = [{"text": str(n), "tag": "sql", "properties": each} for n, each in enumerate(_priced())]
        java.send("producer", topic, priced)
        for number in range(30):
            message = {"text": f"{number % 3} {number:02}", "tag": "ordered"}
            java.send("producer", topic, [message], order_key=f"user-{number % 3}")
        java.send("producer", topic, [{"text": str(number), "tag": "cast"} for number in range(5)])
        java.send("inside", topic, [{"text": "inside"}])
        for names in (light, light[1:]):
            light_message = {"text": ",".join(names), "properties": {"INNER_MULTI_DISPATCH": ",".join(names)}}
            [receipt] = java.send("producer", topic, [light_message])
        broker: str = receipt["broker"]
        return broker

    broker = await asyncio.to_thread(send)
    chosen: list[ReceivedMessage] = []
    ordered: list[ReceivedMessage] = []
    cast: tuple[list[ReceivedMessage], list[ReceivedMessage]] = ([], [])
    spaced: list[ReceivedMessage] = []
    async with (
        client.consumer(
            topic, group=f"Sql{topic}", filter=Sql(_FILTER), start="earliest", handler=collecting(chosen)
        ),
        client.consumer(
            topic, group=f"Ordered{topic}", filter="ordered", orderly=True, start="earliest", handler=collecting(ordered)
        ),
        client.consumer(
            topic, group=f"Cast{topic}", filter="cast", broadcasting=True, start="earliest",
            handler=collecting(cast[0]), offset_directory=tmp_path / "one",
        ),
        connect(name_server, instance_name="other") as other,
        other.consumer(
            topic, group=f"Cast{topic}", filter="cast", broadcasting=True, start="earliest",
            handler=collecting(cast[1]), offset_directory=tmp_path / "two",
        ),
        connect(name_server, namespace=space) as inside,
        inside.consumer(topic, group=f"Spaced{topic}", start="earliest", handler=collecting(spaced)),
    ):  # fmt: skip
        everything = (chosen, ordered, *cast, spaced)
        wanted = [len(_CHOSEN), 30, 5, 5, 1]
        await eventually(lambda: [*map(len, everything)] == wanted, 60)
    assert sorted(int(message.body) for message in chosen) == _CHOSEN
    _assert_in_order((message.queue.queue_id, message.body.decode()) for message in ordered)
    assert [message.body for message in spaced] == [b"inside"]
    assert spaced[0].topic == topic
    for name, bodies in ((light[0], [",".join(light)]), (light[1], [",".join(light), light[1]])):
        async with client.pull_consumer(name) as reader:
            await reader.queues(topic)  # a light queue has no route of its own
            queue = QueueRef(name, broker, 0)
            fetched = await reader.fetch(queue, offset=0)
            assert [message.body.decode() for message in fetched] == bodies
            await reader.commit_offset(queue, fetched.next_offset)
            assert await reader.committed(queue) == len(bodies)


def _bodies(messages: list[Received]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def _assert_in_order(messages: Iterable[tuple[int, str]]) -> None:
    """Thirty messages of three keys: those of a key in one queue, as they were sent."""
    by_key: dict[str, list[str]] = defaultdict(list)
    queues: dict[str, set[int]] = defaultdict(set)
    for queue_id, body in messages:
        key, number = body.split()
        by_key[key].append(number)
        queues[key].add(queue_id)
    assert by_key == {str(key): [f"{number:02}" for number in range(key, 30, 3)] for key in range(3)}
    assert all(len(used) == 1 for used in queues.values()), queues
