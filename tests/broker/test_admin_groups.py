"""Operators make, change, look at and delete consumer groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import Wire, running, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command


async def make(client: Wire, **config: object) -> Command:
    body = json.dumps(config).encode()
    return await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def config_of(client: Wire, group: str) -> dict[str, Any]:
    answer = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
    assert answer.code == 0, answer.remark
    config: dict[str, Any] = json.loads(answer.body)
    return config


async def test_a_group_is_made_changed_and_kept_with_members_we_do_not_know(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await make(client, groupName="G", retryMaxTimes=3, newerThanUs={"a": 1})).code == 0
    async with running(tmp_path) as broker, wire(broker) as client:
        config = await config_of(client, "G")
        assert config["retryMaxTimes"] == 3
        assert config["newerThanUs"] == {"a": 1}
        assert config["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
        assert config["consumeTimeoutMinute"] == 15


@pytest.mark.parametrize(
    "config",
    [
        {"groupName": "a b"},
        {"groupName": ""},
        {"groupName": "G", "retryMaxTimes": -2},
        {"groupName": "G", "retryQueueNums": 65_537},
        {},
        {"groupName": []},
    ],
)
async def test_impossible_groups_are_refused(client: Wire, config: dict[str, object]) -> None:
    assert (await make(client, **config)).code == ResponseCode.INVALID_PARAMETER


async def test_a_group_that_was_saved_with_too_many_retry_queues_has_as_many_as_a_topic_can(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await make(client, groupName="G", retryQueueNums=65_536)).code == 0
    path = tmp_path / "config" / "subscriptionGroup.json"
    saved = path.read_text()
    assert saved.count("65536") == 1
    path.write_text(saved.replace("65536", "2000000"))
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await config_of(client, "G"))["retryQueueNums"] == 65_536


@pytest.mark.parametrize(
    "member",
    [
        b'"retryMaxTimes":4294967296',
        b'"retryQueueNums":100000000000000000000',
        b'"future":{{"broker":"a"}:1}',
        b'"attributes":[]',
        b'"groupRetryPolicy":7',
    ],
)
async def test_a_group_that_could_not_be_saved_or_read_again_is_refused(
    broker: Broker, client: Wire, member: bytes
) -> None:
    body = b'{"groupName":"G",' + member + b"}"
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 29
    assert broker.state.groups.get("G") is None
    assert (await make(client, groupName="Other")).code == 0


async def test_a_list_of_groups_is_made_as_a_whole_or_not_at_all(broker: Broker, client: Wire) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    body = json.dumps({"groupConfigList": [{"groupName": "A"}, {"groupName": "a b"}]}).encode()
    assert (await client.ask(code, body=body)).code == ResponseCode.INVALID_PARAMETER
    assert broker.state.groups.get("A") is None
    body = json.dumps({"groupConfigList": [{"groupName": "A"}, {"groupName": "B"}]}).encode()
    assert (await client.ask(code, body=body)).code == 0
    answer = await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {"A", "B", "TOOLS_CONSUMER"} <= json.loads(answer.body)["subscriptionGroupTable"].keys()


async def test_asking_for_a_group_makes_it_only_where_groups_are_made_by_use(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as broker, wire(broker) as client:
        assert (await config_of(client, "G"))["groupName"] == "G"
        bad = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "a/b"})
        assert bad.code == ResponseCode.INVALID_PARAMETER
    async with running(tmp_path / "b", autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        answer = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("field", ["cleanOffset", "removeOffset"])
@pytest.mark.parametrize("clean", [False, True])
async def test_a_deleted_group_leaves_its_offsets_unless_told_to_clean(
    broker: Broker, client: Wire, clean: bool, field: str
) -> None:
    await make(client, groupName="G")
    broker.state.offsets.commit("G", "T", 0, 7)
    header = {"groupName": "G", field: str(clean).lower()}
    assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
    assert broker.state.groups.get("G") is None
    assert broker.state.offsets.get("G", "T", 0) == (None if clean else 7)
    assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nope"})).code == 0


@pytest.mark.parametrize("name", ["+a", "a", "-a"])
async def test_a_group_has_no_attributes(client: Wire, name: str) -> None:
    body = json.dumps({"groupName": "G", "retryMaxTimes": 3, "attributes": {name: "b"}}).encode()

    refused = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert (await config_of(client, "G"))["attributes"] == {}


async def test_a_group_is_forbidden_to_read_a_topic_and_allowed_again(broker: Broker, client: Wire) -> None:
    async def ask(**fields: str) -> bool:
        answer = await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "G", "topic": "T", **fields})
        body = json.loads(answer.body)
        assert (body["group"], body["topic"]) == ("G", "T")
        return bool(body["readable"])

    await client.send("T")
    await client.heartbeat("client", "G", {"T": "*"})
    assert await ask()
    assert not await ask(readable="false")
    assert not await ask()
    for bad in ({"group": "a/b", "topic": "T"}, {"group": "G", "topic": "../T"}):
        answer = await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**bad, "readable": "false"})
        assert answer.code == ResponseCode.INVALID_PARAMETER
    refused = await client.pull("T", sys_flag=0, sub_version=0)
    assert (refused.code, refused.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")
    assert await ask(readable="true")
    assert (await client.pull("T", sys_flag=0, sub_version=0)).code == 0


async def test_what_is_not_there_cannot_be_forbidden_but_is_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        await client.send("T")
        await make(client, groupName="G")

        async def code(group: str, topic: str, readable: str) -> int:
            header = {"group": group, "topic": topic, "readable": readable}
            return (await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)).code

        assert await code("G", "nope", "false") == ResponseCode.TOPIC_NOT_EXIST
        assert await code("nobody", "T", "false") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert broker.state.groups.may_read("G", "nope")
        assert broker.state.groups.may_read("nobody", "T")
        assert await code("G", "nope", "true") == 0
        assert await code("G", "T", "false") == 0
        assert not broker.state.groups.may_read("G", "T")


async def test_who_reads_a_topic_and_what_a_group_reads(broker: Broker, client: Wire) -> None:
    await client.heartbeat("client", "Online", {"T": "a || b"})
    broker.state.offsets.commit("Offline", "T", 0, 1)
    broker.state.offsets.commit("Offline", "U", 0, 1)
    groups = json.loads((await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})).body)["groupList"]
    assert sorted(groups) == ["Offline", "Online"]

    body = json.loads((await client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "Offline"})).body)
    assert body == {"brokerAddr": str(broker.address), "topicList": ["T", "U"]}

    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    found = json.loads((await client.ask(code, {"group": "Online", "topic": "T"})).body)
    assert found["subscriptionData"]["subString"] == "a || b"
    none = json.loads((await client.ask(code, {"group": "Offline", "topic": "T"})).body)
    assert none == {"group": "Offline", "topic": "T"}
