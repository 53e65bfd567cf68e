"""Offsets: where a group goes on, and where a queue begins, ends and was at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from tests.broker.kit import (
    EARLIEST_TIME,
    MAX_OFFSET,
    MIN_OFFSET,
    QUERY_OFFSET,
    SEARCH_OFFSET,
    UPDATE_OFFSET,
    Wire,
    running,
    wire,
)
from tests.broker.lease_kit import LeaseClient

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command


async def query(client: Wire, queue_id: int = 0, **changes: object) -> Command:
    return await client.ask(QUERY_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": queue_id, **changes})


async def commit(client: Wire, offset: int, queue_id: int = 0, **changes: object) -> Command:
    header = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "commitOffset": offset, **changes}
    return await client.ask(UPDATE_OFFSET, header)


@pytest.fixture
async def used(client: Wire, broker: Broker) -> Wire:
    """A topic with three messages in queue 0, and a group."""
    for _ in range(3):
        await client.send("T")
    assert broker.state.groups.find("G") is not None
    return client


@pytest.mark.parametrize("offset", [2, 0, 99, 2**62])
async def test_whatever_is_committed_is_what_is_found(used: Wire, offset: int) -> None:
    await commit(used, 1)

    assert (await commit(used, offset)).code == 0

    assert (await query(used)).fields["offset"] == str(offset)


async def test_a_new_group_starts_at_the_beginning_of_a_queue_that_is_still_whole(used: Wire) -> None:
    assert (await query(used)).fields["offset"] == "0"


async def test_clients_that_decide_themselves_are_told_that_there_is_nothing(used: Wire) -> None:
    answer = await query(used, setZeroIfNotFound="false")

    assert (answer.code, dict(answer.fields)) == (22, {})


async def test_a_position_below_zero_is_none(used: Wire) -> None:
    for offset in (-1, -7):
        assert (await commit(used, offset)).code == 0
    assert (await query(used)).fields["offset"] == "0"
    assert (await query(used, setZeroIfNotFound="false")).code == 22


async def test_a_queue_without_messages_gives_a_new_group_nothing(used: Wire) -> None:
    assert (await query(used, 1)).code == 22
    assert (await query(used, topic="Unknown")).code == 22


async def test_a_group_must_exist_then_the_topic_then_the_numbers(used: Wire) -> None:
    assert (await commit(used, 1, consumerGroup="Unknown", topic="Unknown")).code == 26
    assert (await commit(used, 1, topic="Unknown")).code == 17
    names = {"consumerGroup": "G", "topic": "T"}
    assert (await used.ask(UPDATE_OFFSET, names)).code == 29
    assert (await used.ask(UPDATE_OFFSET, {**names, "queueId": 0})).code == 29


async def test_a_commit_makes_no_group(used: Wire, broker: Broker) -> None:
    await commit(used, 1, consumerGroup="Unknown")

    assert broker.state.groups.get("Unknown") is None


async def test_while_a_reset_waits_it_is_what_counts(used: Wire, broker: Broker) -> None:
    await commit(used, 3)
    broker.state.offsets.reset("G", "T", 0, 1)

    ignored = await commit(used, 3)

    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    assert (await query(used)).fields["offset"] == "1"
    await used.pull("T", 0, 3)  # takes the reset up
    assert (await commit(used, 2)).remark is None
    assert (await query(used)).fields["offset"] == "2"


async def test_a_reset_reaches_a_pull_that_waits(used: Wire) -> None:
    waiting = await used.hold("T", 0, 3, consumer_group="G")
    reset = {"topic": "T", "group": "G", "timestamp": -1, "isForce": "true", "offset": 1, "queueId": 0}
    assert (await used.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    answer = await waiting
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.fields["nextBeginOffset"] == "1"


async def test_the_ends_of_a_queue(used: Wire) -> None:
    queue = {"topic": "T", "queueId": 0}
    assert (await used.ask(MAX_OFFSET, queue)).fields["offset"] == "3"
    assert (await used.ask(MIN_OFFSET, queue)).fields["offset"] == "0"
    for unknown in ({"topic": "T", "queueId": 99}, {"topic": "Unknown", "queueId": 0}, {"topic": "T", "queueId": -1}):
        assert (await used.ask(MAX_OFFSET, unknown)).fields["offset"] == "0"
        assert (await used.ask(MIN_OFFSET, unknown)).fields["offset"] == "0"
        assert (await used.ask(EARLIEST_TIME, unknown)).fields["timestamp"] == "-1"


async def test_offsets_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        for _ in range(5):
            await client.send("T")
            clock.advance(seconds=1)

        async def at(time_ms: int, boundary: str = "lower") -> int:
            header = {"topic": "T", "queueId": 0, "timestamp": time_ms, "boundaryType": boundary}
            return int((await client.ask(SEARCH_OFFSET, header)).fields["offset"])

        assert [await at(time_ms) for time_ms in (0, 1_000_000, 1_000_001, 1_004_000, 2_000_000)] == [0, 0, 1, 4, 5]
        assert [await at(time_ms, "upper") for time_ms in (1_000_000, 1_001_500, 2_000_000)] == [0, 1, 4]
        earliest = await client.ask(EARLIEST_TIME, {"topic": "T", "queueId": 0})
        assert earliest.fields["timestamp"] == "1000000"


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_TRANS"])
@pytest.mark.parametrize("topic", ["rmq_sys_REVIVE_LOG_DefaultCluster", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_no_client_moves_a_position_that_is_the_brokers_own(
    used: Wire, broker: Broker, group: str, topic: str
) -> None:
    offsets = broker.state.offsets
    assert (await used.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})).code == 0
    offsets.commit(group, topic, 0, 1)
    assert (await commit(used, 2**62, topic=topic)).code == 0, "that of a group like any other is its own business"
    pull: dict[str, Any] = {
        "consumer_group": group,
        "sys_flag": PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET,
        "commit_offset": 2**62,
    }

    for refused in (
        await commit(used, 2**62, consumerGroup=group, topic=topic),
        await used.pull(topic, **pull),
        await used.pull(topic, **pull),
        await LeaseClient(used, group).ask_pop(topic),
        await used.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"group": group, "topic": topic, "timestamp": -1}),
        await used.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": group, "offline": "true"}),
        await used.ask(
            RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": group, "topic": topic, "offline": "true"}
        ),
        await used.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}),
    ):
        assert refused.code == ResponseCode.NO_PERMISSION, refused

    assert (offsets.get(group, topic, 0), offsets.has_resets) == (1, False)
    assert (await used.pull(topic)).code != ResponseCode.NO_PERMISSION
