"""Pulls: the checks in Java's order, what each state of a queue is answered with, tags, sizes, and offsets on the way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION
from tests.broker.kit import HEART_BEAT, LITE_PULL, QUERY_OFFSET, Wire, messages_of, pull_header, running, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker

BY_HEARTBEAT = 0  # no subscription in the pull: what the group's heartbeat said counts


async def fill(client: Wire, count: int, tags: str = "") -> None:
    for i in range(count):
        assert (await client.send("T", b"%d" % i, TAGS=tags)).code == 0


async def test_a_pull_brings_whole_records_and_says_where_to_go_on(client: Wire) -> None:
    await fill(client, 5)

    answer = await client.pull("T", 0, 1, max_msg_nums=3)

    assert (answer.code, answer.remark) == (0, "FOUND")
    assert [message.body for message in messages_of(answer)] == [b"1", b"2", b"3"]
    assert answer.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "4",
        "minOffset": "0",
        "maxOffset": "5",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


@pytest.mark.parametrize(
    ("offset", "code", "remark", "go_on_at"),
    [
        (5, 19, "OFFSET_OVERFLOW_ONE", "5"),
        (6, 21, "OFFSET_OVERFLOW_BADLY", "5"),
        (2**62, 21, "OFFSET_OVERFLOW_BADLY", "5"),
        (-1, 21, "OFFSET_TOO_SMALL", "0"),
    ],
)
async def test_outside_of_the_queue(client: Wire, offset: int, code: int, remark: str, go_on_at: str) -> None:
    await fill(client, 5)

    answer = await client.pull("T", 0, offset)

    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (code, remark, go_on_at)


async def test_an_empty_queue_is_not_found_at_its_beginning_and_moved_elsewhere(client: Wire) -> None:
    await fill(client, 1)

    assert (await client.pull("T", 1, 0)).code == 19
    moved = await client.pull("T", 1, 5)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (21, "0")


async def test_tags_choose_and_what_matches_nothing_says_how_far_it_looked(client: Wire) -> None:
    for i in range(9):
        await client.send("T", b"%d" % i, TAGS="abc"[i % 3])

    chosen = await client.pull("T", subscription="a || c")
    assert [message.body for message in messages_of(chosen)] == [b"0", b"2", b"3", b"5", b"6", b"8"]
    nothing = await client.pull("T", subscription="x")
    assert (nothing.code, nothing.remark, nothing.fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "9")


@pytest.mark.parametrize("maximum", [0, -5, 1])
async def test_a_pull_for_too_few_brings_one(client: Wire, maximum: int) -> None:
    await fill(client, 3)

    assert len(messages_of(await client.pull("T", max_msg_nums=maximum))) == 1


async def test_a_pull_brings_at_most_what_the_settings_allow(tmp_path: Path) -> None:
    async with running(tmp_path, maxTransferBytesOnMessageInMemory=3000) as broker, wire(broker) as client:
        for _ in range(5):
            await client.send("T", b"x" * 1000)

        assert len(messages_of(await client.pull("T", max_msg_nums=2**31 - 1))) == 2
        assert len(messages_of(await client.pull("T", max_msg_nums=100, max_msg_bytes=1))) == 1


async def test_a_reader_of_whole_queues_names_its_own_limit(client: Wire) -> None:
    await fill(client, 50)
    record_bytes = len((await client.pull("T", max_msg_nums=1)).body)

    assert len(messages_of(await client.pull("T", max_msg_nums=100))) == 32
    bulk = await client.pull("T", max_msg_nums=100, bulk_bytes=1 << 20)
    assert [message.body for message in messages_of(bulk)] == [b"%d" % i for i in range(50)]
    assert len(messages_of(await client.pull("T", max_msg_nums=40, bulk_bytes=1 << 20))) == 40
    assert len(messages_of(await client.pull("T", max_msg_nums=100, bulk_bytes=record_bytes * 3))) == 3
    tagged = await client.pull("T", max_msg_nums=100, bulk_bytes=1 << 20, subscription="none")
    assert (tagged.code, tagged.fields["nextBeginOffset"]) == (20, "50")


async def test_a_message_larger_than_any_limit_still_comes(tmp_path: Path) -> None:
    async with running(tmp_path, maxTransferBytesOnMessageInMemory=3000) as broker, wire(broker) as client:
        await client.send("T", b"x" * 100_000)

        assert await client.bodies("T") == [b"x" * 100_000]


async def test_lite_pulls_have_a_code_of_their_own(client: Wire) -> None:
    await fill(client, 1)

    answer = await client.ask(LITE_PULL, pull_header("T", 0, 0, {"sys_flag": PULL_SUBSCRIPTION | PULL_LITE}))

    assert answer.code == 0


# ---- checks


async def test_who_forbids_a_pull_is_said_by_number(tmp_path: Path) -> None:
    async with running(tmp_path / "1", brokerPermission=2) as broker, wire(broker) as client:
        await fill(client, 1)
        refused = await client.pull("T")
        assert (refused.code, refused.fields["forbiddenType"]) == (16, "1")
    async with running(tmp_path / "2", litePullMessageEnable="false") as broker, wire(broker) as client:
        await fill(client, 1)
        refused = await client.pull("T", sys_flag=PULL_SUBSCRIPTION | PULL_LITE)
        assert (refused.code, refused.fields["forbiddenType"]) == (16, "1")


async def test_a_group_that_may_not_consume_and_a_topic_that_may_not_be_read(client: Wire, broker: Broker) -> None:
    await fill(client, 1)
    assert broker.state.groups.find("Stopped") is not None
    broker.state.groups.disable("Stopped")
    broker.state.topics.create_internal("WriteOnly", 1, perm=2)

    stopped = await client.pull("T", consumer_group="Stopped")
    closed = await client.pull("WriteOnly")

    assert (stopped.code, stopped.fields["forbiddenType"]) == (16, "2")
    assert (closed.code, closed.fields["forbiddenType"]) == (16, "3")


async def test_groups_are_made_at_first_use_unless_that_is_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        await fill(client, 1)
        assert (await client.pull("T", consumer_group="New")).code == 26
        assert (await client.pull("T", consumer_group="CID_RMQ_SYS_own")).code == 0
        assert broker.state.groups.get("New") is None


async def test_an_unknown_topic_and_a_queue_it_does_not_have(client: Wire) -> None:
    await fill(client, 1)

    assert (await client.pull("Unknown")).code == 17
    for queue_id in (-1, 4, 2**31 - 1):
        refused = await client.pull("T", queue_id)
        assert (refused.code, dict(refused.fields)) == (29, {})


async def test_the_group_is_looked_at_before_the_topic_and_the_topic_before_the_subscription(client: Wire) -> None:
    bad_group = "a" * 121
    assert (await client.pull("Unknown", 99, consumer_group=bad_group, subscription="||")).code == 29
    assert (await client.pull("Unknown", 99, subscription="||")).code == 17
    await fill(client, 1)
    assert (await client.pull("T", 99, subscription="||")).code == 29
    assert (await client.pull("T", 0, subscription="||")).code == 23


async def test_without_a_subscription_of_its_own_a_pull_needs_the_groups(client: Wire) -> None:
    await fill(client, 2, "a")

    assert (await client.pull("T", sys_flag=BY_HEARTBEAT)).code == 24  # nobody is there
    await client.heartbeat("c1", "G", {"Other": "*"})
    assert (await client.pull("T", sys_flag=BY_HEARTBEAT)).code == 24  # somebody is, for another topic
    await client.heartbeat("c1", "G", {"T": "b"}, version=3)
    assert (await client.pull("T", sys_flag=BY_HEARTBEAT, sub_version=4)).code == 25
    assert (await client.pull("T", sys_flag=BY_HEARTBEAT, sub_version=3)).code == 20  # their tags count
    await client.heartbeat("c1", "G", {"T": "a"}, version=5)
    assert len(messages_of(await client.pull("T", sys_flag=BY_HEARTBEAT, sub_version=5))) == 2


async def test_a_subscription_that_names_a_class_gets_all_for_its_filter_server(client: Wire) -> None:
    await fill(client, 2, "a")
    wanted = {"topic": "T", "subString": "org.example.Wanted", "classFilterMode": True}
    beat = {"clientID": "c1", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [wanted]}]}
    await client.ask(HEART_BEAT, None, json.dumps(beat).encode())

    assert len(messages_of(await client.pull("T", sys_flag=BY_HEARTBEAT))) == 2


async def test_a_group_that_may_not_broadcast_and_one_that_may_not_read_the_topic(client: Wire, broker: Broker) -> None:
    await fill(client, 1)
    await client.heartbeat("c1", "G", {"T": "*"}, model="BROADCASTING")
    config = broker.state.groups.find("G")
    assert config is not None
    config.consume_broadcast_enable = False
    refused = await client.pull("T", sys_flag=BY_HEARTBEAT)
    assert (refused.code, refused.fields["forbiddenType"]) == (16, "4")

    await client.heartbeat("c1", "G", {"T": "*"})
    await broker.state.groups.set_may_read("G", "T", readable=False)
    refused = await client.pull("T", sys_flag=BY_HEARTBEAT)
    assert (refused.code, refused.fields["forbiddenType"]) == (16, "5")


async def test_sql_filters_are_refused_while_they_are_switched_off(client: Wire) -> None:
    await fill(client, 1)

    assert (await client.pull("T", expression_type="SQL92", subscription="a > 1")).code == 1


async def test_a_number_without_end_matches_no_sql_filter_and_is_none_in_one(tmp_path: Path) -> None:
    endless = "9" * 5000
    async with running(tmp_path, enablePropertyFilter="true") as broker, wire(broker) as client:
        await client.send("T", b"endless", a=endless)
        await client.send("T", b"two", a="2")
        (found,) = messages_of(await client.pull("T", expression_type="SQL92", subscription="a > 1"))
        assert found.body == b"two"
        refused = await client.pull("T", expression_type="SQL92", subscription=f"a > {endless}")
        assert (refused.code, "too large" in str(refused.remark)) == (23, True)


# ---- offsets on the way


async def test_a_pull_commits_the_offset_it_carries(client: Wire) -> None:
    await fill(client, 5)

    await client.pull("T", 0, 3, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=2)

    answer = await client.ask(QUERY_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 0})
    assert answer.fields["offset"] == "2"


async def test_a_refused_pull_commits_nothing(client: Wire, broker: Broker) -> None:
    await fill(client, 1)

    await client.pull("T", 99, 0, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=2)

    assert broker.state.offsets.get("G", "T", 99) is None


async def test_a_reset_sends_the_next_pull_elsewhere_once_and_ignores_what_it_commits(
    client: Wire, broker: Broker
) -> None:
    await fill(client, 5)
    broker.state.offsets.reset("G", "T", 0, 1)

    moved = await client.pull("T", 0, 4, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=4)

    assert (moved.code, moved.remark, moved.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "1")
    assert broker.state.offsets.get("G", "T", 0) == 1
    assert (await client.pull("T", 0, 1)).code == 0
