"""Operators make, change, look at and delete topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq import fastjson
from orbitmq.errors import StorageError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import Wire, running, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command


SYS_FLAG = b'{"topicConfigList":[{"topicName":"T","topicSysFlag":4294967296}]}'
OBJECT_KEY = b'{"topicConfigList":[{"topicName":"T","future":{{"a":1}:2}}]}'


def topic_header(topic: str, **changes: object) -> dict[str, object]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        **changes,
    }


async def make(client: Wire, topic: str, **changes: object) -> Command:
    return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header(topic, **changes))


async def config_of(client: Wire, topic: str) -> dict[str, Any]:
    answer = await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
    assert answer.code == 0, answer.remark
    config: dict[str, Any] = json.loads(answer.body)
    return config


async def test_a_topic_is_made_changed_and_kept_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await make(client, "T", readQueueNums=2, writeQueueNums=3, topicSysFlag=1)).code == 0
        assert (await make(client, "T", readQueueNums=5, writeQueueNums=3, topicSysFlag=1)).code == 0
    async with running(tmp_path) as broker, wire(broker) as client:
        assert await config_of(client, "T") == {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": 5,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "T",
            "topicSysFlag": 1,
            "writeQueueNums": 3,
        }


async def test_attributes_are_added_changed_and_removed_and_otherwise_stay(client: Wire) -> None:
    await make(client, "T", attributes="+message.type=FIFO")
    await make(client, "T", perm=4)
    assert (await config_of(client, "T"))["attributes"] == {"message.type": "FIFO"}
    await make(client, "T", attributes="+message.type=DELAY")
    assert (await config_of(client, "T"))["attributes"] == {"message.type": "DELAY"}
    await make(client, "T", attributes="-message.type")
    assert (await config_of(client, "T"))["attributes"] == {}


@pytest.mark.parametrize(
    "attributes",
    [
        "+message.type=NONE",
        "+no.such=1",
        "message.type=FIFO",
        "+cleanup.policy=COMPACTION",
        "+message.type=FIFO,+message.type=DELAY",
        "+message.type=FIFO,-message.type",
    ],
)
async def test_attributes_that_cannot_be_leave_the_topic_as_it_was(client: Wire, attributes: str) -> None:
    await make(client, "T")
    assert (await make(client, "T", perm=4, attributes=attributes)).code == ResponseCode.SYSTEM_ERROR
    assert (await config_of(client, "T"))["perm"] == 6


async def test_a_change_that_changes_nothing_is_no_new_version(broker: Broker, client: Wire) -> None:
    await make(client, "T")
    before = broker.state.topics.version
    await make(client, "T")
    assert broker.state.topics.version == before


@pytest.mark.parametrize("topic", ["TBW102", "rmq_sys_mine", "a b", "../x", " ", "x" * 128])
async def test_system_topics_and_impossible_names_are_refused(client: Wire, topic: str) -> None:
    assert (await make(client, topic)).code == ResponseCode.INVALID_PARAMETER


async def test_a_list_of_topics_is_made_as_a_whole_or_not_at_all(client: Wire) -> None:
    good = {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "attributes": {"+message.type": "FIFO"}}
    for bad in ({"topicName": "a b"}, {"topicName": "B", "attributes": {"+message.type": "NONE"}}):
        body = json.dumps({"topicConfigList": [good, bad]}).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code != 0
        assert (await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "A"})).code == ResponseCode.TOPIC_NOT_EXIST
    body = json.dumps({"topicConfigList": [good, {"topicName": "B"}]}).encode()
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
    assert (await config_of(client, "A"))["attributes"] == {"message.type": "FIFO"}
    assert (await config_of(client, "B"))["writeQueueNums"] == 16


async def test_a_list_that_is_none_is_refused(client: Wire) -> None:
    for body in (
        b"",
        b"[]",
        b'{"topicConfigList":1}',
        b'{"topicConfigList":[1]}',
        b'{"topicConfigList":[{}]}',
        SYS_FLAG,
        OBJECT_KEY,
    ):
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_static_topics_are_refused_by_name(client: Wire) -> None:
    answer = await client.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, topic_header("T"), b"{}")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "static topics" in (answer.remark or "")


async def test_all_topics_come_in_one_answer_without_a_total(client: Wire) -> None:
    await make(client, "T")
    answer = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0, "maxTopicNum": 1})
    assert "totalTopicNum" not in answer.fields
    table = json.loads(answer.body)
    assert {"T", "TBW102", "SELF_TEST_TOPIC", "broker-a"} <= table["topicConfigTable"].keys()
    assert table["dataVersion"]["counter"] == 1


async def test_system_topics_are_listed(client: Wire) -> None:
    listed = json.loads((await client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster", "CHECKPOINT_TOPIC"} <= set(listed)


async def test_topic_stats_list_every_queue_the_empty_too(client: Wire) -> None:
    await make(client, "T", readQueueNums=2, writeQueueNums=3)
    for body in (b"one", b"two"):
        await client.send("T", body, 1)
    answer = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    table = fastjson.loads(answer.body)["offsetTable"]
    ranges = {key["queueId"]: (value["minOffset"], value["maxOffset"]) for key, value in table.items()}
    assert ranges == {0: (0, 0), 1: (0, 2), 2: (0, 0)}
    times = {key["queueId"]: value["lastUpdateTimestamp"] for key, value in table.items()}
    assert times[0] == 0 < times[1]
    unknown = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nope"})
    assert (unknown.code, unknown.remark) == (17, "topic[nope] not exist")


async def test_a_deleted_topic_takes_its_queues_offsets_figures_and_retries_with_it(
    broker: Broker, client: Wire, tmp_path: Path
) -> None:
    state = broker.state
    await make(client, "T")
    for retry in ("%RETRY%G+T", "%RETRY%G_T", "%RETRY%H_T"):
        state.topics.create_internal(retry, 1)
    state.groups.find("H_T")  # so that %RETRY%H_T belongs to a group of this name
    await client.send("T", b"gone", 0)
    assert await client.bodies("T") == [b"gone"]
    state.offsets.commit("G", "T", 0, 1)
    state.offsets.commit("H", "T", 0, 1)
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0

    assert state.topics.get("T") is state.topics.get("%RETRY%G+T") is state.topics.get("%RETRY%G_T") is None
    assert state.topics.get("%RETRY%H_T") is not None
    assert state.offsets.get("G", "T", 0) is None
    assert "T" not in state.store.topics()
    assert not (tmp_path / "store" / "consumequeue" / "T").exists()
    assert state.statistics.find("TOPIC_PUT_NUMS", "T") is None

    await client.send("T", b"new", 0)  # made again by its first message, from offset 0 on
    assert await client.bodies("T") == [b"new"]
    counter = state.statistics.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    assert counter.value == 1
    reads = state.statistics.find("GROUP_GET_NUMS", "T@G")
    assert reads is not None
    assert reads.value == 1


@pytest.mark.parametrize(
    ("code", "gone"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "cleanOffset": "true"}),
    ],
)
async def test_a_reset_that_nobody_has_taken_up_does_not_outlive_its_topic_or_group(
    broker: Broker, client: Wire, code: int, gone: dict[str, str]
) -> None:
    await make(client, "T")
    broker.state.groups.find("G")
    offsets = broker.state.offsets
    for queue_id in (0, 1):
        offsets.reset("G", "T", queue_id, 3)
        offsets.reset("H", "U", queue_id, 3)
    offsets.note_pull("G", "T", 0, 3)
    assert (await client.ask(code, gone)).code == 0
    assert (
        offsets.pending_reset("G", "T", 0) is offsets.pending_reset("G", "T", 1) is offsets.pulled("G", "T", 0) is None
    )
    assert offsets.pending_reset("H", "U", 1) == 3


async def test_a_deletion_that_the_disk_refuses_leaves_everything_as_it_is(
    broker: Broker, client: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client, "T")
    await client.send("T", b"stays", 0)
    broker.state.offsets.commit("G", "T", 0, 1)

    def refuse(topic: str) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(broker.state.store, "delete_topic", refuse)
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code != 0
    assert broker.state.offsets.get("G", "T", 0) == 1
    assert broker.state.topics.get("T") is not None
    assert await client.bodies("T") == [b"stays"]


async def test_what_is_sent_while_a_deletion_is_being_saved_is_not_deleted(
    broker: Broker, client: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client, "T")
    assert (await client.send("T", b"gone", 0)).code == 0
    assert broker.address is not None
    other = Wire(broker.address)
    saved = broker.state.topics._saved
    save = saved.save

    async def send_and_save() -> None:
        monkeypatch.undo()
        assert (await other.send("T", b"stays", 0)).code == 0
        await save()

    monkeypatch.setattr(saved, "save", send_and_save)
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await other.close()
    assert await client.bodies("T") == [b"stays"]


async def test_retry_topics_stay_where_so_configured(tmp_path: Path) -> None:
    async with running(tmp_path, clearRetryTopicWhenDeleteTopic="false") as broker, wire(broker) as client:
        await make(client, "T")
        broker.state.topics.create_internal("%RETRY%G+T", 1)
        broker.state.offsets.commit("G", "T", 0, 1)
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert broker.state.topics.get("%RETRY%G+T") is not None


async def test_deleting_what_is_not_there_is_no_error_and_system_topics_stay(client: Wire) -> None:
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "nope"})).code == 0
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "../.."})).code == 0
    for topic in (" ", "TBW102", "SCHEDULE_TOPIC_XXXX"):
        assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 29


async def test_queues_of_topics_that_do_not_exist_any_more_are_cleaned(broker: Broker, client: Wire) -> None:
    await client.send("Kept")
    await client.send("Orphan")
    await client.bodies("Orphan")
    await broker.state.topics.delete(["Orphan"])
    assert (await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert "Orphan" not in broker.state.store.topics()
    assert await client.bodies("Kept") == [b"body"]
