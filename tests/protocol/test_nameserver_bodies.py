"""The name server's bodies: Apache's own go through our structs without loss, and ours come out in either dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq import fastjson
from orbitmq.errors import BodyError
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.registration import Registration
from orbitmq.protocol.bodies.route import (
    BrokerData,
    BrokerMembers,
    BrokerMembersBody,
    ClusterInfo,
    KvTable,
    QueueData,
    TopicRoute,
)
from orbitmq.protocol.bodies.topics import DataVersion, TopicConfig, TopicList, TopicTable
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.frame import FrameDecoder
from tests.golden_frames import GoldenFrame, golden_frames

if TYPE_CHECKING:
    from orbitmq.protocol.bodies.base import Body

REQUESTS: dict[int, type[Body]] = {
    RequestCode.REGISTER_BROKER: Registration,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRoute,
}
ANSWERS: dict[int, type[Body]] = {
    RequestCode.REGISTER_BROKER: KvTable,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KvTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRoute,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_BROKER_MEMBER_GROUP: BrokerMembersBody,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    RequestCode.GET_UNIT_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
}


def kind_of(golden: GoldenFrame) -> type[Body] | None:
    table, code = (ANSWERS, golden.to_code or 0) if golden.is_response else (REQUESTS, golden.code)
    return table.get(code)


def body_of(golden: GoldenFrame) -> bytes:
    return commands.decode(FrameDecoder().feed(golden.data)[0]).body


# The compressed registrations have tests of their own.
RECORDED = [g for g in golden_frames() if kind_of(g) is not None and body_of(g)[:1] == b"{"]


def without_absences(value: Any) -> Any:
    """Nulls, and what a struct does not declare because no name server looks at it, left out."""
    if isinstance(value, dict):
        ignored = {"topicQueueMappingDetailMap", "registeredTopic", "json"}
        return {key: without_absences(item) for key, item in value.items() if item is not None and key not in ignored}
    return [without_absences(item) for item in value] if isinstance(value, list) else value


def differences(theirs: Any, ours: Any, path: str = "$") -> list[str]:
    """Where `ours` lacks or changes something of `theirs`; what ours adds are defaults that Java left out."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [d for key, item in theirs.items() for d in differences(item, ours.get(key), f"{path}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [d for at, item in enumerate(theirs) for d in differences(item, ours[at], f"{path}[{at}]")]
    return [] if theirs == ours else [f"{path}: {theirs!r} became {ours!r}"]


def test_the_recordings_hold_every_body_of_the_name_server() -> None:
    seen = {(golden.is_response, golden.to_code if golden.is_response else golden.code) for golden in RECORDED}
    assert seen == {(False, int(code)) for code in REQUESTS} | {(True, int(code)) for code in ANSWERS}


@pytest.mark.parametrize("golden", RECORDED, ids=str)
@pytest.mark.parametrize("standard", [True, False], ids=["standard", "old dialect"])
def test_a_recorded_body_goes_through_its_struct_without_loss(golden: GoldenFrame, standard: bool) -> None:
    kind, data = kind_of(golden), body_of(golden)
    assert kind is not None
    body = kind.from_json(data)
    written = body.to_json(standard=standard)
    assert kind.from_json(written) == body
    assert differences(without_absences(fastjson.loads(data)), fastjson.loads(written)) == []


ROUTE = TopicRoute(
    broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})],
    queue_datas=[QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4)],
)


def test_broker_ids_are_quoted_in_standard_json_and_bare_in_the_old_dialect() -> None:
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in ROUTE.to_json()
    assert b'"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in ROUTE.to_json(standard=False)
    members = BrokerMembersBody(broker_member_group=BrokerMembers(cluster="c", broker_name="b", broker_addrs={0: "x"}))
    assert b"{0:" in members.to_json(standard=False)
    assert TopicRoute.from_json(ROUTE.to_json()) == TopicRoute.from_json(ROUTE.to_json(standard=False)) == ROUTE


def test_bodies_are_compact_and_have_no_nulls() -> None:
    for standard in (True, False):
        text = ROUTE.to_json(standard=standard)
        assert b" " not in text
        assert b"null" not in text


@pytest.mark.parametrize(
    "text",
    [
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"}]}',
        b"{brokerDatas:[{brokerAddrs:{0:'a:1'},brokerName:'b',cluster:'c'}]}",
        b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1",},"brokerName":"b","cluster":"c",},],}',
        b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c","zoneName":null}],"queueDatas":null}',
        b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c","enableActingMaster":"false"}]}\n',
    ],
)
def test_reads_all_of_fastjsons_liberties(text: bytes) -> None:
    (broker,) = TopicRoute.from_json(text).broker_datas
    assert broker == BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1"})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"topicConfigTable":[]}',
        b'{"topicConfigTable":{"t":5}}',
        b'{"topicConfigTable":{"t":{}}}',
        b'{"topicConfigTable":{"t":{"topicName":"t","perm":"all"}}}',
        b'{"topicConfigTable":{"t":{"topicName":"t","perm":2147483648}}}',
        b'{"topicConfigTable":{{"a":1}:{"topicName":"t"}}}',
        b'{"dataVersion":{"counter":9223372036854775808}}',
        b'{"dataVersion":{"$ref":"$.dataVersion"}}',
        b'{"topicConfigTable":' + b"{" * 100_000,
        b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:50]),
)
def test_a_body_of_another_shape_is_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        TopicTable.from_json(text)


def test_a_reference_is_followed_not_taken_for_an_empty_object() -> None:
    table = TopicTable.from_json(b'{"dataVersion":{"counter":3},"mappingDataVersion":{"$ref":"$.dataVersion"}}')
    assert table.mapping_data_version == DataVersion(counter=3)


def test_versions_are_equal_when_all_three_numbers_are() -> None:
    assert DataVersion.from_json(b'{"counter":1,"timestamp":2}') == DataVersion(counter=1, timestamp=2)
    assert DataVersion(counter=1) != DataVersion(counter=1, state_version=1)


def test_a_topic_keeps_its_flags_and_attributes() -> None:
    config = TopicConfig(topic_name="t", perm=7, topic_sys_flag=3, order=True, attributes={"+message.type": "FIFO"})
    assert TopicConfig.from_json(config.to_json()) == config
