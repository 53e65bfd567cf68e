"""Apache's transaction producers, SQL92 consumers and requesters on our broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop import orbit, wire
from tests.interop.apache import NameServer
from tests.interop.drivers import ClientError, JavaClient
from tests.interop.marks import INTEROP
from tests.raw_client import until

pytestmark = INTEROP

_PUT_ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"
_SETTINGS: dict[str, str | int] = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    "enablePropertyFilter": "true",
}


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with orbit.running(tmp_path_factory.mktemp("transactions"), _SETTINGS) as (name_server, _):
        yield name_server


def test_only_what_the_producer_commits_is_consumed(
    name_server: NameServer, release: str, java_client: Callable[[bool], JavaClient]
) -> None:
    topic, client = f"Payments{release[0]}", java_client(False)
    client.call(
        "OpenTransactionProducer", name="payer", nameServer=name_server.address, group=f"payers{release[0]}", options={}
    )
    decisions = {
        "committed": ("COMMIT_MESSAGE", "UNKNOW"),
        "rolled back": ("ROLLBACK_MESSAGE", "COMMIT_MESSAGE"),
        "committed when asked": ("UNKNOW", "COMMIT_MESSAGE"),
        "rolled back when asked": ("UNKNOW", "ROLLBACK_MESSAGE"),
    }
    messages = [
        {"text": text, "tag": "pay", "properties": {"local": local, "check": check}}
        for text, (local, check) in decisions.items()
    ]
    receipts = client.call("SendInTransaction", name="payer", topic=topic, messages=messages)
    assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}

    client.open_push_consumer("consumer", name_server.address, topic, group=f"payees{release[0]}", tags="pay")

    received = client.received("consumer", 3, seconds=8)
    assert sorted(message.body.decode() for message in received) == ["committed", "committed when asked"]
    assert {message.topic for message in received} == {topic}


async def test_a_transaction_that_was_given_up_can_be_resumed(
    name_server: NameServer, release: str, java_client: Callable[[bool], JavaClient]
) -> None:
    """By Apache's admin library; mqadmin has no command for it."""
    topic, group, client = f"Doubts{release[0]}", f"doubters{release[0]}", java_client(False)
    client.open_admin_tool("admin", name_server.address)
    (broker,) = client.ask("admin", "examineBrokerClusterInfo")["brokerAddrTable"].values()
    address = broker["brokerAddrs"]["0"]
    producer: dict[str, Any] = {"nameServer": name_server.address, "group": group, "options": client.producer_options}

    assert wire.ask(address, wire.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=1").code == 0
    try:
        client.call("OpenTransactionProducer", name="unsure", **producer)
        doubt = {"text": "doubt", "keys": topic, "properties": {"local": "UNKNOW", "check": "UNKNOW"}}
        (receipt,) = client.call("SendInTransaction", name="unsure", topic=topic, messages=[doubt])
        await until(lambda: _is_put_aside(client, topic), what="giving it up")
    finally:
        assert wire.ask(address, wire.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=15").code == 0
    client.close_one("unsure")
    client.call("OpenTransactionProducer", name="sure", whenAsked="COMMIT_MESSAGE", **producer)
    # A producer that has sent nothing is known to no broker.
    sure = {"text": "sure", "properties": {"local": "COMMIT_MESSAGE"}}
    client.call("SendInTransaction", name="sure", topic=topic, messages=[sure])

    assert client.ask("admin", "resumeCheckHalfMessage", _PUT_ASIDE, receipt["id"])

    client.open_push_consumer("reader", name_server.address, topic, group=f"readers{release[0]}")
    assert sorted(message.body for message in client.received("reader", 2)) == [b"doubt", b"sure"]


def _is_put_aside(client: JavaClient, key: str) -> bool:
    try:
        return bool(client.ask("admin", "queryMessage", _PUT_ASIDE, key, 1, 0, 2**62)["messageList"])
    except ClientError:  # "no message", or no such topic yet
        return False


def test_a_sql92_consumer_gets_what_its_filter_matches(
    name_server: NameServer, release: str, java_client: Callable[[bool], JavaClient]
) -> None:
    topic, client = f"Filtered{release[0]}", java_client(False)
    client.open_producer("producer", name_server.address)
    client.send(
        "producer",
        topic,
        [{"text": str(i), "properties": {"price": str(i), "region": "eu" if i % 2 else "us"}} for i in range(20)],
    )

    client.open_push_consumer(
        "consumer", name_server.address, topic, group=f"sql{release[0]}", sql="price BETWEEN 5 AND 10 AND region = 'eu'"
    )

    assert sorted(int(m.body) for m in client.received("consumer", 3, seconds=15)) == [5, 7, 9]


def test_a_request_gets_its_reply(
    name_server: NameServer, release: str, java_client: Callable[[bool], JavaClient]
) -> None:
    topic, client = f"Rpc{release[0]}", java_client(False)
    client.open_producer("asker", name_server.address)
    client.send("asker", topic, [{"text": "so that the topic exists"}])
    client.call(
        "OpenResponder", name="responder", nameServer=name_server.address, group=f"rpc{release[0]}", topic=topic
    )
    client.received("responder", 1)

    replies = client.call(
        "Request", name="asker", topic=topic, messages=[{"text": "one"}, {"text": "two"}], timeoutMillis=20_000
    )

    assert replies == ["re: one", "re: two"]
