"""Apache's Go client (rocketmq-client-go 2.1.2) on our name server and our broker."""

import asyncio

import pytest

from orbitmq import Client, ReceivedMessage
from orbitmq.admin.session import Session
from orbitmq.admin.traces import trace_events
from tests.client.scripted import eventually
from tests.client.suite import collecting
from tests.interop.crossed import OrbitCluster
from tests.interop.drivers import DrivenClient
from tests.interop.every_client import (  # noqa: F401 - what must hold in every language
    SECONDS,
    test_a_delay_level_is_kept,
    test_a_message_that_fails_comes_again_and_then_is_a_dead_letter,
    test_a_mixed_group_shares_the_queues,
    test_a_namespace_keeps_topics_and_groups_apart,
    test_a_sql92_filter_matches,
    test_every_member_of_a_broadcasting_group_gets_everything,
    test_it_reads_what_python_sends,
    test_its_pull_consumer_gets_everything,
    test_its_signature_is_understood_and_a_wrong_one_refused,
    test_order_is_kept_from_sender_to_consumer,
    test_python_reads_what_it_sends,
)
from tests.interop.languages import GO, Language
from tests.interop.marks import OTHER_LANGUAGES

pytestmark = OTHER_LANGUAGES


@pytest.fixture(scope="module")
def language() -> Language:
    return GO


async def test_only_what_its_transactions_commit_is_consumed(
    name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    decisions = {
        "committed": ("COMMIT_MESSAGE", "UNKNOW"),
        "rolled back": ("ROLLBACK_MESSAGE", "COMMIT_MESSAGE"),
        "committed when asked": ("UNKNOW", "COMMIT_MESSAGE"),
        "rolled back when asked": ("UNKNOW", "ROLLBACK_MESSAGE"),
    }
    messages = [
        {"text": text, "properties": {"local": local, "check": check}} for text, (local, check) in decisions.items()
    ]
    group = f"Payers{topic}"
    await asyncio.to_thread(guest.call, "OpenTransactionProducer", name=topic, nameServer=name_server, group=group)
    await asyncio.to_thread(guest.call, "SendInTransaction", name=topic, topic=topic, messages=messages)
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Payees{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: {message.body for message in seen} == {b"committed", b"committed when asked"}, SECONDS)
    await asyncio.to_thread(guest.close_one, topic)


async def test_requests_are_answered_by_either_client(
    name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    async with client.producer("PythonResponder") as responder:

        async def answer(message: ReceivedMessage) -> None:
            await responder.reply(message, "re: " + message.body.decode())

        await asyncio.to_thread(guest.open_producer, f"{topic}-p", name_server)
        async with client.consumer(topic, group=f"Answers{topic}", start="earliest", handler=answer):
            replies = await asyncio.to_thread(
                guest.call, "Request", name=f"{topic}-p", topic=topic, messages=[{"text": "é"}, {"text": "two"}],
                timeoutMillis=30_000,
            )  # fmt: skip
    assert replies == ["re: é", "re: two"]
    group = f"Rpc{topic}"
    await asyncio.to_thread(guest.call, "OpenResponder", name=topic, nameServer=name_server, group=group, topic=topic)
    async with client.producer("PythonAsker") as asker:
        assert (await asker.request(topic, "é", timeout=SECONDS)).body.decode() == "re: é"
    for name in (f"{topic}-p", topic, f"{topic} replies"):
        await asyncio.to_thread(guest.close_one, name)


def test_its_admin_tool_makes_lists_and_deletes_topics(cluster: OrbitCluster, name: str, guest: DrivenClient) -> None:
    broker = cluster.broker.address
    guest.open_admin_tool(name, cluster.name_server.address)
    guest.call("CreateTopic", name=name, topic=f"{name}-made", broker=broker, queues=3)
    assert f"{name}-made" in guest.call("ListTopics", name=name)
    assert sorted(guest.call("ListQueues", name=name, topic=f"{name}-made")) == [0, 1, 2]
    assert guest.call("ListGroups", name=name, broker=broker)["TOOLS_CONSUMER"] > 0
    guest.call("DeleteTopic", name=name, topic=f"{name}-made")
    assert f"{name}-made" not in guest.call("ListTopics", name=name)
    guest.close_one(name)


async def test_its_traces_are_found_by_the_id_of_a_message(
    name_server: str, client: Client, topic: str, guest: DrivenClient
) -> None:
    await asyncio.to_thread(guest.open_producer, f"{topic}-p", name_server, trace=True)
    [receipt] = await asyncio.to_thread(guest.send, f"{topic}-p", topic, [{"text": "traced", "keys": "k"}])
    await asyncio.to_thread(guest.open_push_consumer, topic, name_server, topic, trace=True)
    [message] = await asyncio.to_thread(guest.received, topic, 1, SECONDS)
    assert message.id == receipt["id"]
    async with Session(client.config) as session, asyncio.timeout(SECONDS):
        told: set[tuple[str, str]] = set()
        while len(told) < 2:  # they are sent a little later
            told = {(event.kind, event.outcome) for event in await trace_events(session, receipt["id"])}
            await asyncio.sleep(0.2)
    assert told == {("sent", "success"), ("consumed", "success")}
    for name in (f"{topic}-p", topic):
        await asyncio.to_thread(guest.close_one, name)
