"""How far groups are, as tools see it, and sending them elsewhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq import fastjson
from orbitmq.clock import ManualClock
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from tests.broker.kit import HEART_BEAT, UPDATE_OFFSET, Wire, running, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.bodies.offsets import ConsumeStats
    from orbitmq.transport.connection import Connection

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


def by_queue(table: Any, topic: str = "T") -> dict[int, Any]:
    return {key["queueId"]: value for key, value in table.items() if key["topic"] == topic}


async def fill(client: Wire, topic: str = "T", queues: int = 2, count: int = 3) -> None:
    for queue_id in range(queues):
        for number in range(count):
            receipt = await client.send(topic, b"%d" % number, queue_id, header={"default_topic_queue_nums": queues})
            assert receipt.code == 0


async def test_consume_stats_of_one_group(broker: Broker, client: Wire) -> None:
    await fill(client)
    broker.state.offsets.commit("G", "T", 0, 2)
    await client.pull("T", 0, 2)
    answer = await client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    lags = by_queue(fastjson.loads(answer.body)["offsetTable"])
    assert (lags[0]["brokerOffset"], lags[0]["consumerOffset"], lags[0]["pullOffset"]) == (3, 2, 3)
    assert (lags[1]["brokerOffset"], lags[1]["consumerOffset"], lags[1]["lastTimestamp"]) == (3, 0, 0)
    assert lags[0]["lastTimestamp"] > 0

    nobody = await client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"})
    assert fastjson.loads(nobody.body) == {"consumeTps": 0.0, "offsetTable": {}}


async def test_while_a_group_is_online_only_topics_it_subscribes_to_count(broker: Broker, client: Wire) -> None:
    for topic in ("T", "U"):
        await fill(client, topic)
        broker.state.offsets.commit("G", topic, 0, 1)
    await client.heartbeat("client", "G", {"T": "*"})

    async def topics(**fields: str) -> set[str]:
        answer = await client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", **fields})
        return {key["topic"] for key in fastjson.loads(answer.body)["offsetTable"]}

    assert await topics() == {"T"}
    assert await topics(topic="U") == set()
    assert await topics(topic="T") == {"T"}
    assert await topics(topicList="U;T;nope") == {"U", "T"}


async def test_each_topic_of_a_list_is_looked_at_once_and_others_have_their_turn_between(
    broker: Broker, client: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("T", "U"):
        await fill(client, topic)
    progress, seen = broker.state.progress, list[str]()
    look = progress.of_topic

    def noted(group: str, topic: str) -> ConsumeStats | None:
        seen.append(topic)
        asyncio.get_running_loop().call_soon(seen.append, "another's turn")
        return look(group, topic)

    monkeypatch.setattr(progress, "of_topic", noted)
    header = {"consumerGroup": "G", "topicList": "T;U;" * 500}
    answer = await client.ask(RequestCode.GET_CONSUME_STATS, header)
    assert seen == ["T", "another's turn", "U", "another's turn"]
    assert {key["topic"] for key in fastjson.loads(answer.body)["offsetTable"]} == {"T", "U"}


async def test_consume_stats_of_all_groups(broker: Broker, client: Wire) -> None:
    await fill(client)
    await fill(client, "Ordered")
    broker.state.groups.find("G")
    broker.state.offsets.commit("G", "T", 0, 1)
    broker.state.offsets.commit("G", "Ordered", 0, 3)
    broker.state.topics.mark_ordered(["Ordered"])
    body = fastjson.loads((await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})).body)
    groups = {group: topics for entry in body["consumeStatsList"] for group, topics in entry.items()}
    assert len(groups["G"]) == 2
    assert groups["TOOLS_CONSUMER"] == []
    assert body["totalDiff"] == 2 + 3 + 0 + 3
    assert body["brokerAddr"] == str(broker.address)
    ordered = fastjson.loads((await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})).body)
    assert ordered["totalDiff"] == 3


async def test_the_time_span_of_each_queue(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        first_ms = clock.now_ms()
        for _ in range(3):
            await client.send("T", queue_id=0, header={"default_topic_queue_nums": 2})
            clock.advance(seconds=10)
        broker.state.offsets.commit("G", "T", 0, 1)
        answer = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"})
        full, empty = json.loads(answer.body)["consumeTimeSpanSet"]
        assert full["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        stamps = (full["minTimeStamp"], full["consumeTimeStamp"], full["maxTimeStamp"])
        assert stamps == (first_ms, first_ms, first_ms + 20_000)
        assert full["delayTime"] == 20_000  # since the second message, which is the group's next
        assert full["minTimeStampStr"].endswith(":20:000")
        assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["delayTime"]) == (-1, -1, 0)
        assert empty["maxTimeStampStr"].endswith(":59:999")
        unknown = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "nope", "group": "G"})
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


async def test_correction_offsets_are_the_smallest_unless_the_compared_group_is_behind(
    broker: Broker, client: Wire
) -> None:
    offsets = broker.state.offsets
    for group, at in (("A", {0: 5, 1: 9}), ("B", {0: 3, 1: 9}), ("Ignored", {0: 0, 1: 0}), ("Compared", {0: 4, 1: 2})):
        for queue_id, offset in at.items():
            offsets.commit(group, "T", queue_id, offset)

    async def ask(ignored: str, compared: str = "Compared") -> dict[str, int]:
        header = {"topic": "T", "filterGroups": ignored, "compareGroup": compared}
        found: dict[str, int] = json.loads((await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)).body)[
            "correctionOffsets"
        ]
        return found

    assert await ask("Ignored") == {"0": 3, "1": 2}
    assert await ask("Ignored,Compared") == {"0": 3, "1": 2**63 - 1}
    assert await ask("", "nobody") == {"0": 0, "1": 0}


async def test_offsets_are_cloned_in_one_topic_or_all(broker: Broker, client: Wire) -> None:
    offsets = broker.state.offsets
    for topic in ("T", "U"):
        await fill(client, topic)
        offsets.commit("A", topic, 1, 2)
    offsets.commit("A", "Gone", 0, 1)
    code = RequestCode.CLONE_GROUP_OFFSET
    assert (await client.ask(code, {"srcGroup": "A", "destGroup": "B", "topic": "T", "offline": "true"})).code == 0
    assert (offsets.get("B", "T", 1), offsets.get("B", "U", 1)) == (2, None)
    assert (await client.ask(code, {"srcGroup": "A", "destGroup": "C", "offline": "true"})).code == 0
    assert (offsets.get("C", "T", 1), offsets.get("C", "U", 1), offsets.get("C", "Gone", 0)) == (2, 2, None)
    assert (await client.ask(code, {"srcGroup": "A", "destGroup": "a@b", "topic": "T", "offline": "true"})).code == 29


async def test_offsets_are_cloned_to_groups_that_can_be_seen(tmp_path: Path) -> None:
    header = {"srcGroup": "A", "destGroup": "B", "topic": "T", "offline": "true"}
    for automatic, code in (("false", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), ("true", ResponseCode.SUCCESS)):
        started = running(tmp_path / automatic, autoCreateSubscriptionGroup=automatic)
        async with started as broker, wire(broker) as client:
            await fill(client)
            broker.state.offsets.commit("A", "T", 1, 2)
            assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code == code
            assert broker.state.offsets.get("B", "T", 1) == (2 if automatic == "true" else None)
            assert (broker.state.groups.get("B") is not None) == (automatic == "true")


async def test_tables_for_slaves(broker: Broker, client: Wire) -> None:
    broker.state.offsets.commit("G", "T", 3, 9)
    offsets = fastjson.loads((await client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    assert {int(queue): at for queue, at in offsets["offsetTable"]["T@G"].items()} == {3: 9}
    delays = fastjson.loads((await client.ask(RequestCode.GET_ALL_DELAY_OFFSET)).body)
    assert {int(level) for level in delays["offsetTable"]} == set(range(1, 19))


# ---- resets


def reset_header(**changes: object) -> dict[str, object]:
    return {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "offset": -1, "queueId": -1, **changes}


async def test_a_reset_is_told_at_the_next_pull_and_hides_commits_until_then(broker: Broker, client: Wire) -> None:
    await fill(client)
    await client.pull("T")
    broker.state.offsets.commit("G", "T", 0, 3)
    broker.state.offsets.commit("G", "T", 1, 3)
    answer = await client.ask(RESET, reset_header(timestamp=0))
    assert by_queue(fastjson.loads(answer.body)["offsetTable"]) == {0: 0, 1: 0}

    commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3}
    ignored = await client.ask(UPDATE_OFFSET, commit)
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    moved = await client.pull("T", 0, 3)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert (await client.pull("T", 0, 0)).code == 0
    await client.ask(UPDATE_OFFSET, commit)
    assert broker.state.offsets.get("G", "T", 0) == 3


async def test_a_reset_to_the_end_one_queue_and_one_offset(broker: Broker, client: Wire) -> None:
    await fill(client)
    broker.state.groups.find("G")
    end = await client.ask(RESET, reset_header(timestamp=-1))
    assert by_queue(fastjson.loads(end.body)["offsetTable"]) == {0: 3, 1: 3}
    one = await client.ask(RESET, reset_header(queueId=1, offset=2))
    assert by_queue(fastjson.loads(one.body)["offsetTable"]) == {1: 2}
    assert (broker.state.offsets.get("G", "T", 0), broker.state.offsets.get("G", "T", 1)) == (3, 2)
    outside = await client.ask(RESET, reset_header(queueId=1, offset=9))
    assert (outside.code, outside.remark) == (1, "Target offset 9 not in consume queue range [0-3]")


async def test_a_reset_of_what_is_not_there(broker: Broker, client: Wire) -> None:
    await fill(client)
    assert (await client.ask(RESET, reset_header(topic="nope"))).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await client.ask(RESET, reset_header())).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("changes", [{"offset": 0}, {"timestamp": -1}, {"timestamp": 0}])
@pytest.mark.parametrize("queue_id", [2, 2**31 - 1])
async def test_a_reset_of_a_queue_that_the_topic_does_not_have_leaves_nothing(
    broker: Broker, client: Wire, queue_id: int, changes: dict[str, int]
) -> None:
    await fill(client, queues=2)
    broker.state.groups.find("G")
    refused = await client.ask(RESET, reset_header(queueId=queue_id, **changes))
    assert (refused.code, "no such queue" in (refused.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert broker.state.offsets.queues("G", "T") == {}
    assert broker.state.offsets.pending_reset("G", "T", queue_id) is None


class Member:
    """A consumer that notes what it is told."""

    def __init__(self, broker: Broker) -> None:
        assert broker.address is not None
        self._address = broker.address
        self.told: list[Command] = []
        self._pool = Pool(
            {
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._note,
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ignore,
            }
        )

    async def _note(self, request: Command, connection: Connection) -> None:
        self.told.append(request)

    async def _ignore(self, request: Command, connection: Connection) -> None: ...

    async def join(self, client_id: str, language: str = "JAVA", version: int = 479) -> None:
        consumer = {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}
        beat = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        request = Command(HEART_BEAT, body=json.dumps(beat).encode(), language=language, version=version)
        assert (await self._pool.call(self._address, request, 20)).code == 0

    async def close(self) -> None:
        await self._pool.close()


@asynccontextmanager
async def members(broker: Broker, *languages: str, version: int = 479) -> AsyncIterator[list[Member]]:
    joined = [Member(broker) for _ in languages]
    try:
        for number, (member, language) in enumerate(zip(joined, languages, strict=True)):
            await member.join(f"client-{number}", language, version)
        yield joined
    finally:
        for member in joined:
            await member.close()


async def test_members_are_told_of_a_reset_where_so_configured_each_in_its_own_form(tmp_path: Path) -> None:
    async with running(tmp_path, useServerSideResetOffset="false") as broker, wire(broker) as client:
        await fill(client)
        for queue_id in range(2):
            broker.state.offsets.commit("G", "T", queue_id, 2)
        offline = await client.ask(RESET, reset_header())
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        async with members(broker, "JAVA", "CPP") as (java, cpp):
            answer = await client.ask(RESET, reset_header(timestamp=0))
            assert by_queue(fastjson.loads(answer.body)["offsetTable"]) == {0: 0, 1: 0}
            await until(lambda: java.told and cpp.told, what="both members hear of it")
            assert java.told[0].is_oneway
            assert java.told[0].fields["isForce"] == "false"
            assert by_queue(fastjson.loads(java.told[0].body)["offsetTable"]) == {0: 0, 1: 0}
            rows = json.loads(cpp.told[0].body)["offsetTable"]
            assert {"brokerName": "broker-a", "queueId": 1, "topic": "T", "offset": 0} in rows
        assert broker.state.offsets.get("G", "T", 0) == 2  # theirs to commit


async def test_unless_forced_members_are_only_sent_back(tmp_path: Path) -> None:
    async with running(tmp_path, useServerSideResetOffset="false") as broker, wire(broker) as client:
        await fill(client)
        unknown = await client.ask(RESET, reset_header())
        assert (unknown.code, unknown.remark) == (1, "THe consumer group <G> not exist")
        for queue_id in range(2):
            broker.state.offsets.commit("G", "T", queue_id, 1)
        async with members(broker, "GO"):
            held = await client.ask(RESET, reset_header(timestamp=-1, isForce="false"))
            assert by_queue(fastjson.loads(held.body)["offsetTable"]) == {0: 1, 1: 1}
            forced = await client.ask(RESET, reset_header(timestamp=-1))
            assert by_queue(fastjson.loads(forced.body)["offsetTable"]) == {0: 3, 1: 3}


@pytest.mark.parametrize("version", [0, 27])
async def test_members_too_old_for_it_are_not_told(tmp_path: Path, version: int) -> None:
    async with running(tmp_path, useServerSideResetOffset="false") as broker, wire(broker) as client:
        await fill(client)
        for queue_id in range(2):
            broker.state.offsets.commit("G", "T", queue_id, 1)
        async with members(broker, "JAVA", version=version) as (member,):
            answer = await client.ask(RESET, reset_header())
            assert (answer.code, "does not support" in (answer.remark or "")) == (1, True)
            assert member.told == []
