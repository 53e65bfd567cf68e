"""Apache's Java clients on our name server and our broker, with each header codec: they must notice nothing."""

from tests.interop.crossed import CrossedClient, OrbitCluster, texts_of
from tests.interop.marks import INTEROP

pytestmark = INTEROP

MAX_BODY = 4 << 20


def test_every_way_to_send_and_to_receive(crossed: CrossedClient, cluster: OrbitCluster, name: str) -> None:
    name_server, java = cluster.name_server.address, crossed.java
    producer, pushing, tagging, pulling = (f"{name}-{what}" for what in ("p", "push", "tag", "pull"))
    java.open_producer(producer, name_server)
    sent: set[str] = set()
    for mode in ("sync", "async", "oneway", "batch"):
        messages = [
            {"text": f"{mode} {i} é", "tag": mode, "keys": f"{mode}-{i}", "properties": {"round": str(i)}}
            for i in range(5)
        ]
        receipts = java.send(producer, name, messages, mode=mode)
        assert {receipt["status"] for receipt in receipts} <= {"SEND_OK"}
        sent |= {str(message["text"]) for message in messages}

    java.open_push_consumer(pushing, name_server, name)
    pushed = java.received(pushing, len(sent))
    assert texts_of(pushed) == sorted(sent)
    for message in pushed:
        mode, number, _ = message.body.decode().split(" ")
        assert (message.tag, message.keys, message.properties["round"]) == (mode, f"{mode}-{number}", number)

    java.open_push_consumer(tagging, name_server, name, tags="sync || batch")
    assert {message.tag for message in java.received(tagging, 10)} == {"sync", "batch"}

    java.open_pull_consumer(pulling, name_server, name)
    assert texts_of(java.poll(pulling, len(sent))) == sorted(sent)
    for client in (producer, pushing, tagging, pulling):
        java.close_one(client)


def test_a_body_as_large_as_clients_send_comes_back_whole(
    crossed: CrossedClient, cluster: OrbitCluster, name: str
) -> None:
    name_server, java = cluster.name_server.address, crossed.java
    producer, body = f"{name}-p", "0123456789abcdef" * (MAX_BODY // 16)
    java.open_producer(producer, name_server, compressMsgBodyOverHowmuch=2 * MAX_BODY)
    (receipt,) = java.send(producer, name, [{"text": body}])
    assert receipt["status"] == "SEND_OK"
    java.open_push_consumer(name, name_server, name)
    (message,) = java.received(name, 1)
    assert message.body == body.encode()
    java.close_one(producer)
    java.close_one(name)


def test_a_message_that_fails_comes_again(crossed: CrossedClient, cluster: OrbitCluster, name: str) -> None:
    name_server, java = cluster.name_server.address, crossed.java
    java.open_producer(f"{name}-p", name_server)
    java.send(f"{name}-p", name, [{"text": "try me"}])
    java.open_push_consumer(name, name_server, name, fail_first=1)

    first, second = java.received(name, 2, seconds=40)

    assert (first.body, first.attempt, second.body, second.attempt) == (b"try me", 0, b"try me", 1)
    assert second.topic == name
    java.close_one(f"{name}-p")
    java.close_one(name)


def test_orderly_consumption_keeps_each_queue_in_order(
    crossed: CrossedClient, cluster: OrbitCluster, name: str
) -> None:
    name_server, java = cluster.name_server.address, crossed.java
    java.open_producer(f"{name}-p", name_server)
    for key in ("a", "b", "c"):
        java.send(f"{name}-p", name, [{"text": f"{key} {i}"} for i in range(10)], order_key=key)
    java.open_push_consumer(name, name_server, name, orderly=True)

    received = java.received(name, 30)

    for key in ("a", "b", "c"):
        mine = [text for text in (message.body.decode() for message in received) if text.startswith(key)]
        assert mine == [f"{key} {i}" for i in range(10)]
    java.close_one(f"{name}-p")
    java.close_one(name)
