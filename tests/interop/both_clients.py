"""The Python client beside Apache's Java client, on one server: what one sends the other reads, and they share groups.

Test modules import these and bring the fixtures `name_server` (its address), `client`, connected to it, `topic`, a topic of eight
queues on one broker, and `java_client`.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from orbitmq import Client, Consumer, PullConsumer, QueueRef, ReceivedMessage, Tracer, fastjson
from orbitmq.client import questions
from orbitmq.message.tags import java_hash
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.groups import ConsumerRunningInfo
from tests.client.scripted import eventually
from tests.client.suite import collecting, until_routed
from tests.interop.drivers import JavaClient


async def test_java_reads_what_python_sends(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    sent = {}
    async with client.producer("PythonProducer") as producer:
        await until_routed(client, topic)
        for number in range(10):
            text = f"message {number} é 标签 🚀"
            receipt = await producer.send(
                topic,
                text,
                tag=f"tag{number % 2}",
                keys=[f"key-{number}", "all"],
                properties={"colour": "blå", "n": str(number)},
            )
            sent[receipt.message_id] = text
        for receipt in await producer.send_batch(topic, ["batch a", "batch b"], tag="tag0"):
            sent[receipt.message_id] = f"batch {'ab'[receipt.queue_offset % 2]}"
        await producer.send(topic, "large " * 2000, tag="tag0")
        await producer.send_oneway(topic, "oneway", tag="tag0")
    java = java_client(False)
    await asyncio.to_thread(java.open_push_consumer, "all", name_server, topic)
    received = await asyncio.to_thread(java.received, "all", 14)
    assert len(received) == 14
    by_id = {message.id: message for message in received}
    for number, (message_id, text) in enumerate(list(sent.items())[:10]):
        message = by_id[message_id]
        assert message.body.decode() == text
        assert (message.tag, message.keys) == (f"tag{number % 2}", f"key-{number} all")
        assert message.properties["colour"] == "blå"
    assert {message.body for message in received} >= {b"batch a", b"batch b", b"oneway", b"large " * 2000}
    await asyncio.to_thread(java.open_push_consumer, "tagged", name_server, topic, tags="tag1")
    assert len(await asyncio.to_thread(java.received, "tagged", 5)) == 5


async def test_python_reads_what_java_sends(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, "producer", name_server)
    messages = [
        {
            "text": f"message {number} é 标签",
            "tag": f"tag{number % 2}",
            "keys": f"k{number}",
            "properties": {"n": str(number)},
        }
        for number in range(10)
    ]
    receipts = await asyncio.to_thread(java.send, "producer", topic, messages)
    await asyncio.to_thread(java.send, "producer", topic, [{"text": "x" * 10_000, "tag": "large"}])
    await asyncio.to_thread(java.send, "producer", topic, [{"text": "a"}, {"text": "b"}], mode="batch")
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Reads{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: len(seen) == 13, 20)
    texts = {message.body.decode(): message for message in seen}
    assert set(texts) == {*(str(message["text"]) for message in messages), "x" * 10_000, "a", "b"}
    one = texts["message 3 é 标签"]
    assert (one.tag, one.keys, one.properties["n"], one.topic) == ("tag1", ["k3"], "3", topic)
    assert one.message_id in {receipt["id"] for receipt in receipts}
    tagged: list[ReceivedMessage] = []
    async with client.consumer(
        topic, group=f"Tagged{topic}", filter="tag0 || large", start="earliest", handler=collecting(tagged)
    ):
        await eventually(lambda: len(tagged) == 6, 20)


async def test_both_put_one_order_key_into_one_queue(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, "producer", name_server)
    async with client.producer("PythonProducer") as producer:
        await until_routed(client, topic)
        keys = ("a1", "标签", "k7", "abc", "polygenelubricants", "user-12345")
        assert any(java_hash(key) < 0 for key in keys)
        for key in keys:
            [theirs] = await asyncio.to_thread(java.send, "producer", topic, [{"text": "x"}], order_key=key)
            ours = await producer.send(topic, b"x", order_key=key)
            assert ours.queue.queue_id == theirs["queue"], key


async def test_a_mixed_group_shares_the_queues(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    group = f"Mixed{topic}"
    java = java_client(False)
    await asyncio.to_thread(java.open_push_consumer, "java", name_server, topic, group=group)
    seen: list[ReceivedMessage] = []
    async with (
        client.producer("PythonProducer") as producer,
        client.consumer(topic, group=group, start="earliest", handler=collecting(seen)) as consumer,
    ):
        await until_routed(client, topic)
        await eventually(lambda: len(consumer.assigned) == 4, 30)
        async with asyncio.timeout(60):
            while await _queues_of_all_others(consumer, group, topic) != 4:  # Java takes up to a rebalance to let go
                await asyncio.sleep(0.2)
        ours = {queue.queue_id for queue in consumer.assigned}
        for queue_id in range(8):
            for number in range(5):
                await producer.send(
                    topic, f"{queue_id}-{number}", queue=QueueRef(topic, consumer.assigned[0].broker_name, queue_id)
                )
        theirs = await asyncio.to_thread(java.received, "java", 20)
        await eventually(lambda: len(seen) == 20, 20)
        assert {message.queue.queue_id for message in seen} == ours
        assert {message.queue for message in theirs} == set(range(8)) - ours
        assert len({message.body for message in seen} | {message.body for message in theirs}) == 40
        await asyncio.to_thread(java.close_one, "java")
        await eventually(lambda: len(consumer.assigned) == 8, 30)


async def test_java_reads_what_python_traces(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    async def check(message: ReceivedMessage) -> bool | None:
        return message.body == b"asked"

    traces = f"Traces{topic}"
    await until_routed(client, topic)
    async with client.producer("PythonProducer") as producer:
        await producer.send(traces, b"so that the topic is there")
    await until_routed(client, traces)
    async with (
        Tracer(client, topic=traces, every_seconds=0.1) as tracer,
        client.transaction_producer(f"Payers{topic}", check=check, hooks=[tracer]) as payer,
        client.pull_consumer("TraceReader") as reader,
    ):
        async with payer.begin(topic, "decided", tag="pay", keys="k") as decided:
            decided.commit()
        async with payer.begin(topic, "asked", check_after=timedelta(seconds=1)) as asked:
            pass
        async with asyncio.timeout(60):
            while "COMMIT_MESSAGE\x01true" not in (text := await _all_text(reader, traces)):
                await asyncio.sleep(0.2)
    java = java_client(False)
    records = await asyncio.to_thread(java.call, "ReadTraces", text=text)
    first, second = decided.receipt.message_id, asked.receipt.message_id
    assert [record["type"] for record in records if record["kind"] == "Pub"] == ["Trans_Msg_Half"] * 2
    ends = [record for record in records if record["kind"] == "EndTransaction"]
    told = {(end["group"], end["topic"], end["type"]) for end in ends}
    assert told == {(f"Payers{topic}", topic, "Trans_msg_Commit")}
    assert {(end["id"], end["tag"], end["keys"], end["decision"], end["asked"]) for end in ends} == {
        (first, "pay", "k", "COMMIT_MESSAGE", False),
        (second, "null", "null", "UNKNOW", False),
        (second, "null", "null", "COMMIT_MESSAGE", True),
    }


async def test_python_asks_and_java_answers(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await until_routed(client, topic)
    await asyncio.to_thread(
        java.call, "OpenResponder", name="responder", nameServer=name_server, group=f"Rpc{topic}", topic=topic
    )
    async with client.producer("PythonAsker") as asker:
        replies = await asyncio.gather(*(asker.request(topic, f"{n} é", timeout=40) for n in range(3)))
    assert [reply.body.decode() for reply in replies] == ["re: 0 é", "re: 1 é", "re: 2 é"]


async def test_java_asks_and_python_answers(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await until_routed(client, topic)

    async with client.producer("PythonResponder") as responder:

        async def answer(message: ReceivedMessage) -> None:
            await responder.reply(message, "re: " + message.body.decode())

        async with client.consumer(topic, group=f"Answers{topic}", start="earliest", handler=answer):
            await asyncio.to_thread(java.open_producer, "asker", name_server)
            replies = await asyncio.to_thread(
                java.call, "Request", name="asker", topic=topic, messages=[{"text": "é"}, {"text": "two"}],
                timeoutMillis=20_000,
            )  # fmt: skip
    assert replies == ["re: é", "re: two"]


async def test_java_reads_what_python_commits_and_delays(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    async def check(message: ReceivedMessage) -> bool | None:
        return None

    async with client.transaction_producer(f"Payers{topic}", check=check) as payer, client.producer("P") as producer:
        await until_routed(client, topic)
        async with payer.begin(topic, "committed é", tag="pay", keys="k1") as transaction:
            transaction.commit()
        async with payer.begin(topic, "rolled back") as other:
            other.roll_back()
        await producer.send(topic, "delayed", delay=timedelta(seconds=1))
        await producer.send(topic, "of a level", delay_level=1)
        await producer.send(topic, "grouped", message_group="user-7")
        java = java_client(False)
        await asyncio.to_thread(java.open_push_consumer, "all", name_server, topic)
        received = await asyncio.to_thread(java.received, "all", 4)
    by_text = {message.body.decode(): message for message in received}
    assert set(by_text) == {"committed é", "delayed", "of a level", "grouped"}
    committed = by_text["committed é"]
    assert (committed.tag, committed.keys, committed.id) == ("pay", "k1", transaction.receipt.message_id)


async def test_python_reads_what_java_commits(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await until_routed(client, topic)
    await asyncio.to_thread(
        java.call,
        "OpenTransactionProducer",
        name="payer",
        nameServer=name_server,
        group=f"JavaPayers{topic}",
        options={},
    )
    decisions = {"committed": "COMMIT_MESSAGE", "rolled back": "ROLLBACK_MESSAGE"}
    messages = [{"text": text, "properties": {"local": local, "check": "UNKNOW"}} for text, local in decisions.items()]
    await asyncio.to_thread(java.call, "SendInTransaction", name="payer", topic=topic, messages=messages)
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Reads{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: seen, 30)
        await asyncio.sleep(0.5)  # nothing else may come
    assert [message.body for message in seen] == [b"committed"]


async def _queues_of_all_others(consumer: Consumer, group: str, topic: str) -> int:
    """How many queues of the topic other members say they own."""
    assert consumer._instance is not None
    cluster = consumer._instance.cluster
    address = questions.any_address(cluster, consumer.assigned[0].broker_name)
    count = 0
    for client_id in await questions.consumer_ids(cluster, address, group):
        if client_id != consumer._instance.client_id:
            header = ConsumerRunningInfo(consumer_group=group, client_id=client_id)
            answer = await cluster.call(address, request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), 10)
            if answer.code == ResponseCode.SUCCESS:
                count += sum(queue["topic"] == topic for queue in fastjson.loads(answer.body)["mqTable"])
    return count


async def _all_text(reader: PullConsumer, topic: str) -> str:
    found = [await reader.fetch(queue, offset=0, max=256) for queue in await reader.queues(topic)]
    bodies = [message.body.decode() for fetched in found for message in fetched]
    return "".join(body for body in bodies if "\x01" in body)
