"""Who is there: heartbeats, leaving, being told of each other, and consuming in order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker.queue_locks import QueueLocks
from orbitmq.clock import ManualClock
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.codes import ResponseCode
from tests.broker.kit import CHECK_CLIENT, CONSUMER_LIST, HEART_BEAT, LOCK, UNLOCK, UNREGISTER, Wire, running, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker


async def consumer_ids(client: Wire, group: str = "G") -> list[str]:
    answer = await client.ask(CONSUMER_LIST, {"consumerGroup": group})
    assert answer.code == 0, answer.remark
    ids: list[str] = json.loads(answer.body)["consumerIdList"]
    return sorted(ids)


async def told(client: Wire, count: int) -> None:
    await until(lambda: len(client.notices) >= count, what=f"notice {count}")
    assert client.notices == [{"consumerGroup": "G"}] * count


async def test_a_heartbeat_makes_the_group_and_its_retry_topic(client: Wire, broker: Broker) -> None:
    answer = await client.heartbeat("c1", "G", {"T": "*"})

    assert (answer.code, dict(answer.fields)) == (0, {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})
    assert broker.state.groups.get("G") is not None
    retry = broker.state.topics.require("%RETRY%G")
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert await consumer_ids(client) == ["c1"]


async def test_a_group_that_may_not_be_made_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        assert (await client.heartbeat("c1", "G", {"T": "*"})).code == 0
        assert broker.state.clients.consumers("G") is None


async def test_nobody_in_the_group_is_an_error_with_javas_words(client: Wire) -> None:
    answer = await client.ask(CONSUMER_LIST, {"consumerGroup": "G"})

    assert (answer.code, answer.remark) == (1, "no consumer for this group, G")


async def test_members_hear_of_each_other_coming_changing_leaving_and_dying(client: Wire, broker: Broker) -> None:
    async with wire(broker) as second:
        await client.heartbeat("c1", "G", {"T": "*"})
        await told(client, 1)
        await client.heartbeat("c1", "G", {"T": "*"})  # nothing new
        await second.heartbeat("c2", "G", {"T": "*"})
        await told(client, 2)
        assert await consumer_ids(client) == ["c1", "c2"]
        await second.heartbeat("c2", "G", {"T": "*", "U": "*"})
        await told(client, 3)
        await second.ask(UNREGISTER, {"clientID": "c2", "producerGroup": "", "consumerGroup": "G"})
        await told(client, 4)
        assert await consumer_ids(client) == ["c1"]
        await second.heartbeat("c2", "G", {"T": "*"})
        await told(client, 5)
    await told(client, 6)
    assert await consumer_ids(client) == ["c1"]


@pytest.mark.parametrize("where", ["broker", "group"])
async def test_notices_can_be_switched_off(tmp_path: Path, where: str) -> None:
    enabled = "false" if where == "broker" else "true"
    async with running(tmp_path, notifyConsumerIdsChangedEnable=enabled) as broker, wire(broker) as client:
        group = broker.state.groups.find("G")
        assert group is not None
        group.notify_consumer_ids_changed_enable = where == "broker"
        await client.heartbeat("c1", "G", {"T": "*"})
        await consumer_ids(client)

        assert client.notices == []


async def test_a_client_that_came_back_over_a_new_connection_counts_once(client: Wire, broker: Broker) -> None:
    async with wire(broker) as again:
        await client.heartbeat("c1", "G", {"T": "*"})
        await again.heartbeat("c1", "G", {"T": "*"})
        assert await consumer_ids(client) == ["c1"]
    await told(client, 3)  # the second connection came and went
    assert await consumer_ids(client) == ["c1"]


async def test_only_the_client_itself_can_leave(client: Wire) -> None:
    await client.heartbeat("c1", "G", {"T": "*"})

    await client.ask(UNREGISTER, {"clientID": "other", "consumerGroup": "G"})

    assert await consumer_ids(client) == ["c1"]


async def test_a_short_heartbeat_is_enough_once_the_long_one_was_heard(client: Wire) -> None:
    def short(fingerprint: int) -> bytes:
        consumer = {"groupName": "G", "subscriptionDataSet": []}
        beat = {
            "clientID": "c1",
            "consumerDataSet": [consumer],
            "withoutSub": True,
            "heartbeatFingerprint": fingerprint,
        }
        return json.dumps(beat).encode()

    unknown = await client.ask(HEART_BEAT, None, short(7))
    assert unknown.fields["IS_SUB_CHANGE"] == "true"  # say all of it again
    await client.heartbeat("c1", "G", {"T": "*"})
    known = await client.ask(HEART_BEAT, None, short(7))
    assert (known.code, known.fields["IS_SUB_CHANGE"]) == (0, "false")
    assert await consumer_ids(client) == ["c1"]


async def test_producers_are_known_and_forgotten_with_their_connection(client: Wire, broker: Broker) -> None:
    async with wire(broker) as producer:
        beat = {"clientID": "p1", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
        await producer.ask(HEART_BEAT, None, json.dumps(beat).encode())
        assert [known.client_id for known in broker.state.clients.producers("P")] == ["p1"]
    await until(lambda: broker.state.clients.producers("P") == [], what="the producer forgotten")


async def test_who_falls_silent_is_closed_and_the_others_hear_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client, wire(broker) as silent:
        await silent.heartbeat("c2", "G", {"T": "*"})
        connection = await silent.connection()
        clock.advance(seconds=100)
        await client.heartbeat("c1", "G", {"T": "*"})
        await told(client, 1)
        clock.advance(seconds=30)

        broker.state.clients.expire(120_000)

        await told(client, 2)
        assert await consumer_ids(client) == ["c1"]
        await until(lambda: connection.closed, what="the silent one closed")


async def test_a_member_that_subscribes_differently_is_named(
    client: Wire, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(broker) as second:
        await client.heartbeat("c1", "G", {"T": "a"})
        await second.heartbeat("c2", "G", {"T": "b"})

    assert "c2 subscribes to other topics or tags" in caplog.text


@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        ({"topic": "T", "subString": "a || b"}, 0),
        ({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}, 1),
        ({"topic": "T", "subString": "||"}, 23),
    ],
)
async def test_a_subscription_can_be_checked_beforehand(client: Wire, subscription: dict[str, str], code: int) -> None:
    body = {"clientId": "c1", "group": "G", "subscriptionData": subscription}

    assert (await client.ask(CHECK_CLIENT, None, json.dumps(body).encode())).code == code


# ---- locks


def queues(*numbers: int) -> list[dict[str, Any]]:
    return [{"brokerName": "broker-a", "queueId": number, "topic": "T"} for number in numbers]


async def lock(client: Wire, client_id: str, *numbers: int, group: str = "G") -> list[int]:
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": queues(*numbers)}
    answer = await client.ask(LOCK, None, json.dumps(body).encode())
    assert answer.code == 0
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"])


async def unlock(client: Wire, client_id: str, *numbers: int) -> None:
    body = {"clientId": client_id, "consumerGroup": "G", "mqSet": queues(*numbers)}
    assert (await client.ask(UNLOCK, None, json.dumps(body).encode())).code == 0


async def test_a_queue_is_locked_by_one_client_of_a_group_at_a_time(client: Wire) -> None:
    await client.send("T")
    assert await lock(client, "c1", 0, 1) == [0, 1]
    assert await lock(client, "c2", 1, 2) == [2]
    assert await lock(client, "c1", 0, 1, 2) == [0, 1]  # its own again
    assert await lock(client, "c9", 0, 1, 2, group="Other") == [0, 1, 2]


async def test_only_the_owner_unlocks(client: Wire) -> None:
    await client.send("T")
    await lock(client, "c1", 0, 1)
    await unlock(client, "c2", 0)
    assert await lock(client, "c2", 0, 1) == []
    await unlock(client, "c1", 0)
    assert await lock(client, "c2", 0, 1) == [0]


async def test_a_lock_lives_for_a_minute_after_its_owner_last_asked_for_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T")
        await lock(client, "c1", 0, 1)
        clock.advance(seconds=40)
        await lock(client, "c1", 1)
        clock.advance(seconds=20)
        assert await lock(client, "c2", 0, 1) == []
        clock.advance(ms=1)
        assert await lock(client, "c2", 0, 1) == [0]


async def test_a_group_that_locks_nothing_is_not_remembered(broker: Broker, client: Wire) -> None:
    await client.send("T")
    assert await lock(client, "c1", group="Empty") == []
    assert await lock(client, "c1", 999, group="Nowhere") == []
    assert await lock(client, "c1", 0, group="Holder") == [0]
    assert await lock(client, "c2", 0, group="Holder") == []
    assert list(broker.state.locks._owners) == ["Holder"]


@pytest.mark.parametrize(
    "changes",
    [
        {"consumerGroup": "g" * 10_000},
        {"consumerGroup": "a b"},
        {"consumerGroup": ""},
        {"clientId": "c" * 10_000},
        {"mqSet": [{"brokerName": "b" * 10_000, "queueId": 0, "topic": "T"}]},
    ],
)
async def test_a_lock_under_a_name_that_nobody_has_is_refused(
    broker: Broker, client: Wire, changes: dict[str, Any]
) -> None:
    await client.send("T")
    body = {"clientId": "c1", "consumerGroup": "G", "mqSet": queues(0), **changes}
    answer = await client.ask(LOCK, None, json.dumps(body).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert len(broker.state.locks) == 0


def test_locks_of_clients_that_fell_silent_are_forgotten() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    places = [QueueKey(broker_name="b", queue_id=number, topic="T") for number in range(100)]
    for number in range(99):
        locks.lock(f"old {number}", "c", places)
    clock.advance(seconds=30)
    locks.lock("young", "c", places)
    clock.advance(seconds=31)
    locks.lock("new", "c", places[:1])
    assert len(locks) == 101
    assert locks.lock("young", "other", places) == []


def beat(client_id: str, topics: list[str], fingerprint: int, *, without: bool = False) -> bytes:
    wanted = [{"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for topic in topics]
    consumer = {"groupName": "G", "subscriptionDataSet": [] if without else wanted}
    return json.dumps(
        {
            "clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [],
            "heartbeatFingerprint": fingerprint, "withoutSub": without,
        }
    ).encode()  # fmt: skip


async def test_a_member_whose_subscriptions_another_replaced_is_asked_to_say_them_again(
    client: Wire, broker: Broker
) -> None:
    await client.send("T1", b"1")
    await client.send("T2", b"2")
    async with wire(broker) as older:
        assert (await client.ask(HEART_BEAT, None, beat("new", ["T1", "T2"], 12))).code == 0
        assert (await older.ask(HEART_BEAT, None, beat("old", ["T1"], 1))).code == 0
        assert (
            await client.pull("T2", 0, 0, sys_flag=0, sub_version=1)
        ).code == 24  # the group's are the newest heartbeat's
        answer = await client.ask(HEART_BEAT, None, beat("new", ["T1", "T2"], 12, without=True))
        assert answer.fields["IS_SUB_CHANGE"] == "true"
