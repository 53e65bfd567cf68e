"""What a client in any language must be able to do on our servers, beside our own client: test modules import what theirs can.

They bring the fixture `language`. Those of conftest.py are `guest`, its client in a process of its own, `cluster`, where retries come
after a second, `name_server`, its address, `client`, ours, and `topic`, of four queues.
"""

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from orbitmq import Client, ReceivedMessage, connect
from tests.client.scripted import eventually
from tests.client.suite import collecting, queues_of, until_routed
from tests.interop import orbit
from tests.interop.crossed import OrbitCluster, texts_of
from tests.interop.drivers import ClientError, DrivenClient
from tests.interop.languages import Language

SECONDS = 60.0  # a client that asked for a route a moment too early asks again after 30
LARGE = "large " * 2000  # every client compresses it, or must understand that another did


async def test_python_reads_what_it_sends(
    name_server: str, client: Client, topic: str, guest: DrivenClient, language: Language
) -> None:
    await asyncio.to_thread(guest.open_producer, topic, name_server)
    sent: dict[str, str] = {}
    for mode in language.modes:
        messages = [
            {"text": f"{mode} {n} é 标签", "tag": mode, "keys": f"{mode}-{n}", "properties": {"n": str(n)}}
            for n in range(4)
        ]
        receipts = await asyncio.to_thread(guest.send, topic, topic, messages, mode=mode)
        assert {receipt["status"] for receipt in receipts} <= {"SEND_OK"}
        sent |= {str(message["text"]): mode for message in messages}
    [large] = await asyncio.to_thread(guest.send, topic, topic, [{"text": LARGE, "tag": "large"}])
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Reads{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: len(seen) == len(sent) + 1, SECONDS)
    found = {message.body.decode(): message for message in seen}
    assert {text: message.tag for text, message in found.items()} == {**sent, LARGE: "large"}
    assert large["id"] in {found[LARGE].message_id, found[LARGE].offset_id}
    for text, mode in sent.items():
        number = text.split()[1]
        assert (found[text].keys, found[text].properties["n"]) == ([f"{mode}-{number}"], number)
    await asyncio.to_thread(guest.close_one, topic)


async def test_it_reads_what_python_sends(name_server: str, client: Client, topic: str, guest: DrivenClient) -> None:
    ids = {}
    async with client.producer("PythonProducer") as producer:
        for number in range(6):
            receipt = await producer.send(
                topic, f"{number} é 标签 🚀", tag=f"tag{number % 2}", keys=f"k{number}", properties={"n": str(number)}
            )
            ids[receipt.message_id] = number
        await producer.send_batch(topic, ["batch a", "batch b"], tag="tag0")
        await producer.send(topic, LARGE, tag="tag0")
        await producer.send_oneway(topic, "oneway", tag="tag0")
    whole, tagged = f"{topic}-all", f"{topic}-tagged"
    await asyncio.to_thread(guest.open_push_consumer, whole, name_server, topic)
    received = await asyncio.to_thread(guest.received, whole, 10, SECONDS)
    by_id = {message.id: message for message in received}
    for message_id, number in ids.items():
        message = by_id[message_id]
        assert message.body.decode() == f"{number} é 标签 🚀"
        assert (message.tag, message.keys, message.properties["n"]) == (f"tag{number % 2}", f"k{number}", str(number))
    assert len(received) == 10
    assert {message.body for message in received} >= {b"batch a", b"batch b", b"oneway", LARGE.encode()}
    await asyncio.to_thread(guest.open_push_consumer, tagged, name_server, topic, tags="tag1 || other")
    assert {m.keys for m in await asyncio.to_thread(guest.received, tagged, 3, SECONDS)} == {"k1", "k3", "k5"}
    for opened in (whole, tagged):
        await asyncio.to_thread(guest.close_one, opened)


async def test_a_mixed_group_shares_the_queues(
    name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    """Both sides share alike, so that every message comes to one of them; what the guest leaves, we take over."""
    group = f"Mixed{topic}"
    await asyncio.to_thread(guest.open_push_consumer, topic, name_server, topic, group=group)
    seen: list[ReceivedMessage] = []
    theirs: set[int] = set()
    async with (
        client.producer("PythonProducer") as producer,
        client.consumer(topic, group=group, start="earliest", handler=collecting(seen)) as consumer,
    ):
        await eventually(lambda: len(consumer.assigned) == 2, SECONDS)
        ours = {queue.queue_id for queue in consumer.assigned}
        async with asyncio.timeout(SECONDS):
            while theirs != {0, 1, 2, 3} - ours:  # the guest takes up to a rebalance to let go of ours
                for queue in await producer.queues(topic):
                    await producer.send(topic, b"whose?", queue=queue)
                theirs = {m.queue for m in await asyncio.to_thread(guest.received, topic, 2, 1)}
        assert len(consumer.assigned) == 2
        await eventually(lambda: {message.queue.queue_id for message in seen} == ours, SECONDS)
        await asyncio.to_thread(guest.close_one, topic)
        await eventually(lambda: len(consumer.assigned) == 4, SECONDS)


async def test_a_message_that_fails_comes_again_and_then_is_a_dead_letter(
    cluster: OrbitCluster, name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    async with client.producer("PythonProducer") as producer:
        await producer.send(topic, b"poison", keys="p1")
    group = f"Failing{topic}"
    await cluster.create_group(group, retries=1)
    await cluster.create_topic(f"%RETRY%{group}")  # so that clients find it at once: else some look again after 30 s
    await until_routed(client, f"%RETRY%{group}")
    await asyncio.to_thread(
        guest.open_push_consumer, topic, name_server, topic, group=group, fail_first=99, maxReconsumeTimes=1
    )
    received = await asyncio.to_thread(guest.received, topic, 2, SECONDS)
    assert [(message.body, message.attempt) for message in received] == [(b"poison", 0), (b"poison", 1)]
    assert {message.topic for message in received} == {topic}
    async with client.pull_consumer("DeadLetterReader") as reader:
        [queue] = await queues_of(reader, f"%DLQ%{group}")
        fetched = await reader.fetch(queue, offset=0, wait=20)
    assert [(message.body, message.keys) for message in fetched] == [(b"poison", ["p1"])]
    await asyncio.to_thread(guest.close_one, topic)


async def test_order_is_kept_from_sender_to_consumer(name_server: str, topic: str, guest: DrivenClient) -> None:
    """An orderly consumer that fails the first of each queue once waits for it, and sees the rest after it."""
    keys = ("a", "b", "c")
    await asyncio.to_thread(guest.open_producer, f"{topic}-p", name_server)
    for key in keys:
        messages = [{"text": f"{key} {number}"} for number in range(8)]
        receipts = await asyncio.to_thread(guest.send, f"{topic}-p", topic, messages, order_key=key)
        assert [receipt["offset"] for receipt in receipts] == sorted(receipt["offset"] for receipt in receipts)
    await asyncio.to_thread(guest.open_push_consumer, topic, name_server, topic, orderly=True)
    received = await asyncio.to_thread(guest.received, topic, 24, SECONDS)
    texts = [message.body.decode() for message in received]
    for key in keys:
        assert [text for text in texts if text.startswith(key)] == [f"{key} {number}" for number in range(8)]
        assert len({message.queue for message in received if message.body.decode().startswith(key)}) == 1
    for opened in (f"{topic}-p", topic):
        await asyncio.to_thread(guest.close_one, opened)


async def test_every_member_of_a_broadcasting_group_gets_everything(
    name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    group, members = f"All{topic}", (f"{topic}-1", f"{topic}-2")
    for member in members:
        await asyncio.to_thread(guest.open_push_consumer, member, name_server, topic, group=group, broadcasting=True)
    seen: dict[str, set[str]] = {member: set() for member in members}
    async with client.producer("PythonProducer") as producer, asyncio.timeout(SECONDS):
        number = 0
        while any(not seen[member] for member in members):  # one that has just come starts at the end
            for queue in await producer.queues(topic):
                await producer.send(topic, str(number := number + 1), queue=queue)
            for member in members:
                seen[member] |= set(texts_of(await asyncio.to_thread(guest.received, member, 1, 1)))
    assert seen[members[0]] & seen[members[1]]
    for member in members:
        await asyncio.to_thread(guest.close_one, member)


async def test_a_delay_level_is_kept(name_server: str, client: Client, topic: str, guest: DrivenClient) -> None:
    await asyncio.to_thread(guest.open_producer, topic, name_server)
    await asyncio.to_thread(guest.send, topic, topic, [{"text": "later", "delayLevel": 2}, {"text": "now"}])
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Waits{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: len(seen) == 2, SECONDS)
    later = next(message for message in seen if message.body == b"later")
    assert later.stored_at - later.born_at >= timedelta(seconds=1)
    await asyncio.to_thread(guest.close_one, topic)


async def test_a_sql92_filter_matches(name_server: str, client: Client, topic: str, guest: DrivenClient) -> None:
    async with client.producer("PythonProducer") as producer:
        for number in range(12):
            region = "eu" if number % 2 else "us"
            await producer.send(topic, str(number), properties={"price": str(number), "region": region})
    sql = "price BETWEEN 5 AND 10 AND region = 'eu'"
    await asyncio.to_thread(guest.open_push_consumer, topic, name_server, topic, sql=sql)
    assert texts_of(await asyncio.to_thread(guest.received, topic, 3, SECONDS)) == ["5", "7", "9"]
    await asyncio.to_thread(guest.close_one, topic)


async def test_a_namespace_keeps_topics_and_groups_apart(
    cluster: OrbitCluster, client: Client, topic: str, guest: DrivenClient
) -> None:
    """The guest's `topic` in the namespace is our `Inst%topic`; the topic of that name without one stays empty."""
    name_server = cluster.name_server.address
    await cluster.create_topic(f"Inst%{topic}")
    await asyncio.to_thread(guest.open_producer, f"{topic}-p", name_server, namespace="Inst")
    await asyncio.to_thread(guest.send, f"{topic}-p", topic, [{"text": "apart"}])
    await asyncio.to_thread(guest.open_push_consumer, topic, name_server, topic, namespace="Inst")
    [message] = await asyncio.to_thread(guest.received, topic, 1, SECONDS)
    assert message.body == b"apart"
    async with client.pull_consumer("Reader") as reader:
        outside = [await reader.fetch(queue, offset=0) for queue in await queues_of(reader, topic)]
        inside = [await reader.fetch(queue, offset=0) for queue in await queues_of(reader, f"Inst%{topic}")]
    assert [m.body for fetched in inside for m in fetched] == [b"apart"]
    assert [m.body for fetched in outside for m in fetched] == []
    for opened in (f"{topic}-p", topic):
        await asyncio.to_thread(guest.close_one, opened)


async def test_its_signature_is_understood_and_a_wrong_one_refused(tmp_path: Path, language: Language) -> None:
    """Servers and client of their own, since some clients share one connection among all they open."""
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n"
        "- accessKey: a-maker\n"
        "  secretKey: its-secret\n"
        "  defaultGroupPerm: SUB\n"
        "  defaultTopicPerm: PUB|SUB\n"
        "- accessKey: a-client\n"
        "  secretKey: a-secret\n"
        "  defaultGroupPerm: SUB\n"
        "  topicPerms: [Allowed=PUB|SUB]\n"
    )
    settings: dict[str, str | int] = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    with ExitStack() as stack:
        server = orbit.start_name_server(tmp_path / "nameserver")
        stack.callback(server.process.kill)
        stack.callback(orbit.start_broker(tmp_path / "broker", server.address, settings=settings).process.kill)
        async with connect(server.address, credentials=("a-maker", "its-secret")) as maker:
            async with maker.producer("Maker") as producer:
                for topic in ("Allowed", "Forbidden"):
                    await producer.send(topic, "made")
            for name in ("guest", "impostor"):
                guest = await asyncio.to_thread(language.start, tmp_path / name)
                stack.callback(guest.close)
                secret = "a-secret" if name == "guest" else "guessed-it"
                await asyncio.to_thread(_sign_and_send, guest, server.address, secret)
            async with maker.pull_consumer("Reader") as reader:
                for topic, texts in (("Allowed", {b"made", "hello é".encode()}), ("Forbidden", {b"made"})):
                    fetched = [await reader.fetch(queue, offset=0) for queue in await queues_of(reader, topic)]
                    assert {message.body for each in fetched for message in each} == texts


def _sign_and_send(guest: DrivenClient, name_server: str, secret: str) -> None:
    who = ("a-client", secret)
    guest.open_producer("p", name_server, credentials=who)
    if secret == "a-secret":
        guest.send("p", "Allowed", [{"text": "hello é", "tag": "t", "keys": "k"}])
        guest.open_push_consumer("c", name_server, "Allowed", credentials=who)
        assert texts_of(guest.received("c", 2, SECONDS)) == ["hello é", "made"]
    for topic in ("Forbidden",) if secret == "a-secret" else ("Allowed", "Forbidden"):
        with pytest.raises((ClientError, AssertionError)):
            guest.send("p", topic, [{"text": "no"}])


def test_its_pull_consumer_gets_everything(name_server: str, topic: str, guest: DrivenClient) -> None:
    guest.open_producer(f"{topic}-p", name_server)
    guest.send(f"{topic}-p", topic, [{"text": str(number)} for number in range(8)])
    guest.open_pull_consumer(topic, name_server, topic)
    assert texts_of(guest.poll(topic, 8, SECONDS)) == [str(number) for number in range(8)]
    for opened in (f"{topic}-p", topic):
        guest.close_one(opened)
