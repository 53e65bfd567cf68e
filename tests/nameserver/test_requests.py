"""Every request of the name server, asked over a real connection."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest

from orbitmq.clock import ManualClock
from orbitmq.protocol.bodies.registration import Registration, body_checksum, encode_compressed
from orbitmq.protocol.bodies.route import QueueData, TopicRoute
from orbitmq.protocol.bodies.topics import DataVersion
from orbitmq.protocol.codes import FLAG_ONEWAY, RequestCode
from orbitmq.protocol.command import decode
from orbitmq.protocol.frame import FrameDecoder
from tests.golden_frames import golden_frames
from tests.nameserver.running import addresses, register, registration_fields, route, running, topic_table
from tests.raw_client import RawClient, raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ADDRESS = "10.0.0.1:10911"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path) as server, raw_client(server.address) as client:
        yield client


async def test_a_registered_broker_is_found_by_topic(client: RawClient) -> None:
    answer = await register(client)
    assert (answer.code, dict(answer.fields), answer.body) == (0, {}, b"")
    assert addresses(await route(client, "TopicA")) == {"broker-a": {0: ADDRESS}}


async def test_a_topic_without_a_route_is_said_to_have_none(client: RawClient) -> None:
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nobody"})
    assert answer.code == 17
    assert (answer.remark or "").startswith("No topic route info in name server for the topic: Nobody")


@pytest.mark.parametrize(
    ("version", "fields", "quoted"),
    [(400, {}, False), (401, {}, True), (0, {}, False), (0, {"acceptStandardJsonOnly": "true"}, True)],
)
async def test_routes_are_written_for_the_askers_release(
    client: RawClient, version: int, fields: dict[str, str], quoted: bool
) -> None:
    await register(client)
    for _ in range(2):  # the second answer comes from memory
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA", **fields}, version=version)
        assert (b'{"0":"' in answer.body) == quoted
        assert (b'{0:"' in answer.body) != quoted


async def test_a_kept_answer_is_forgotten_when_something_changes(client: RawClient) -> None:
    await register(client)
    before = await route(client, "TopicA")
    await register(client, topics=topic_table("TopicA", "TopicB", version=2, perm=4))
    after = await route(client, "TopicA")
    assert before is not None
    assert after is not None
    assert (before.queue_datas[0].perm, after.queue_datas[0].perm) == (6, 4)


async def test_the_zone_filter_answers_even_with_nothing(client: RawClient) -> None:
    await register(client, __ZONE_NAME="z1")
    assert addresses(await route(client, "TopicA", __ZONE_MODE="true", __ZONE_NAME="Z1")) != {}
    found = await route(client, "TopicA", __ZONE_MODE="true", __ZONE_NAME="elsewhere")
    assert found == TopicRoute()
    assert addresses(await route(client, "TopicA", __ZONE_MODE="false", __ZONE_NAME="elsewhere")) != {}


@pytest.mark.parametrize("labelled", ["true", "false"], ids=["as 4.9.7 labels it", "as 5.3.3 mislabels it"])
async def test_a_compressed_registration_is_accepted_however_it_is_labelled(client: RawClient, labelled: str) -> None:
    body = encode_compressed(Registration(topic_config_serialize_wrapper=topic_table("TopicA", "TopicB")))
    fields = registration_fields() | {"compressed": labelled, "bodyCrc32": str(body_checksum(body))}
    assert (await client.ask(RequestCode.REGISTER_BROKER, fields, body)).code == 0
    assert addresses(await route(client, "TopicB")) == {"broker-a": {0: ADDRESS}}


async def test_a_damaged_body_is_refused(client: RawClient) -> None:
    answer = await client.ask(RequestCode.REGISTER_BROKER, registration_fields() | {"bodyCrc32": "1"}, b"{}")
    assert answer.code == 1
    assert (answer.remark or "").startswith("crc32 not match")


async def test_a_broker_that_starts_with_one_topic_is_refused(client: RawClient) -> None:
    answer = await register(client, topics=topic_table("only"))
    assert answer.code == 1
    assert (answer.remark or "").startswith("register broker failed")


async def test_a_slave_is_told_its_master(client: RawClient) -> None:
    await register(client)
    answer = await register(client, broker_id=1, address="10.0.0.2:10911")
    assert dict(answer.fields) == {"masterAddr": ADDRESS, "haServerAddr": "10.0.0.1:10912"}


async def test_recorded_registrations_of_apaches_brokers_are_accepted_one_after_the_other(client: RawClient) -> None:
    for golden in golden_frames():
        if golden.code == 103 and not golden.is_response:
            client.send(golden.data)
            if not decode(FrameDecoder().feed(golden.data)[0]).is_oneway:
                assert (await client.answer()).code == 0, golden
    assert addresses(await route(client, "TBW102")) != {}


async def test_order_topics_are_given_to_brokers_that_register(client: RawClient) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:8"}
    assert (await client.ask(RequestCode.PUT_KV_CONFIG, fields)).code == 0
    assert msgspec.json.decode((await register(client)).body) == {"table": {"TopicA": "broker-a:8"}}
    assert (await client.ask(RequestCode.DELETE_KV_CONFIG, fields)).code == 0
    assert msgspec.json.decode((await register(client)).body) == {"table": {}}


async def test_order_topics_can_be_kept_from_brokers_and_shown_to_clients(tmp_path: Path) -> None:
    async with (
        running(tmp_path, returnOrderTopicConfigToBroker=False, orderMessageEnable=True) as server,
        raw_client(server.address) as client,
    ):
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:8"}
        await client.ask(RequestCode.PUT_KV_CONFIG, fields)
        assert (await register(client)).body == b""
        found = await route(client, "TopicA")
        assert found is not None
        assert found.order_topic_conf == "broker-a:8"
        await client.ask(RequestCode.PUT_KV_CONFIG, fields | {"value": "broker-a:4"})
        found = await route(client, "TopicA")
        assert found is not None
        assert found.order_topic_conf == "broker-a:4"


async def test_unregistering_removes_the_routes(client: RawClient) -> None:
    await register(client)
    assert (await client.ask(RequestCode.UNREGISTER_BROKER, registration_fields())).code == 0
    assert await route(client, "TopicA") is None


async def test_a_broker_that_leaves_and_returns_in_one_breath_stays(client: RawClient) -> None:
    await register(client)
    body = Registration(topic_config_serialize_wrapper=topic_table("TopicA", "TopicB")).to_json()
    client.send(
        client.request(RequestCode.UNREGISTER_BROKER, registration_fields())
        + client.request(RequestCode.REGISTER_BROKER, registration_fields(), body)
    )
    assert [(await client.answer()).code for _ in range(2)] == [0, 0]
    assert addresses(await route(client, "TopicA")) == {"broker-a": {0: ADDRESS}}


async def test_too_many_leaving_at_once_are_told_to_try_again(tmp_path: Path) -> None:
    async with (
        running(tmp_path, unRegisterBrokerQueueCapacity=2) as server,
        raw_client(server.address) as client,
    ):
        requests = [
            client.request(RequestCode.UNREGISTER_BROKER, registration_fields(f"b{i}", address=f"a{i}:1"))
            for i in range(4)
        ]
        client.send(b"".join(requests))
        assert [(await client.answer()).code for _ in range(4)] == [0, 0, 1, 1]
        assert (await client.ask(RequestCode.UNREGISTER_BROKER, registration_fields())).code == 0


async def test_versions_are_compared_and_told(client: RawClient) -> None:
    fields = registration_fields()
    unknown = await client.ask(RequestCode.QUERY_DATA_VERSION, fields, DataVersion().to_json())
    assert (dict(unknown.fields), unknown.body) == ({"changed": "true"}, b"")
    await register(client)
    held = topic_table().data_version
    same = await client.ask(RequestCode.QUERY_DATA_VERSION, fields, held.to_json())
    assert dict(same.fields) == {"changed": "false"}
    assert DataVersion.from_json(same.body) == held
    other = await client.ask(RequestCode.QUERY_DATA_VERSION, fields, DataVersion(counter=9).to_json())
    assert dict(other.fields) == {"changed": "true"}


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
async def test_heartbeats_keep_a_broker_alive(code: RequestCode, tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as server, raw_client(server.address) as client:
        await register(client)
        clock.advance(minutes=1.5)
        await client.ask(code, registration_fields(), DataVersion().to_json())
        clock.advance(minutes=1.5)
        server.expire_silent_brokers()
        assert addresses(await route(client, "TopicA")) != {}


async def test_the_cluster_is_told_for_the_askers_release(client: RawClient) -> None:
    await register(client)
    modern = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert msgspec.json.decode(modern.body)["clusterAddrTable"] == {"cluster-1": ["broker-a"]}
    old = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, version=400)
    assert b'{0:"10.0.0.1:10911"}' in old.body


async def test_the_members_of_a_group_are_told(client: RawClient) -> None:
    await register(client)
    fields = {"clusterName": "cluster-1", "brokerName": "broker-a"}
    answer = await client.ask(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
    assert msgspec.json.decode(answer.body) == {
        "brokerMemberGroup": {"cluster": "cluster-1", "brokerName": "broker-a", "brokerAddrs": {"0": ADDRESS}}
    }


async def test_write_permission_is_wiped_and_added(client: RawClient) -> None:
    await register(client)
    wiped = await client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert dict(wiped.fields) == {"wipeTopicCount": "2"}
    added = await client.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert dict(added.fields) == {"addTopicCount": "2"}


LISTS: list[tuple[RequestCode, dict[str, str], dict[str, object]]] = [
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, {"topicList": ["TopicA", "TopicB"]}),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "cluster-1"}, {"topicList": ["TopicA", "TopicB"]}),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "unknown"}, {"topicList": []}),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, {"topicList": ["cluster-1", "broker-a"], "brokerAddr": ADDRESS}),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}, {"topicList": ["TopicA", "TopicB"]}),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, {"topicList": []}),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, {"topicList": []}),
]


@pytest.mark.parametrize(("code", "fields", "body"), LISTS)
async def test_topics_are_listed(
    client: RawClient, code: RequestCode, fields: dict[str, str], body: dict[str, object]
) -> None:
    await register(client, topics=topic_table("TopicA", "TopicB", topic_sys_flag=1))
    answer = await client.ask(code, fields)
    assert msgspec.json.decode(answer.body) == body


async def test_topic_lists_can_be_switched_off(tmp_path: Path) -> None:
    async with (
        running(tmp_path, enableAllTopicList=False, enableTopicList=False) as server,
        raw_client(server.address) as client,
    ):
        for code, fields, _ in LISTS:
            answer = await client.ask(code, fields)
            expected = 0 if code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS else 1
            assert answer.code == expected
            assert answer.remark == ("disable" if expected else None)


async def test_topics_are_registered_and_deleted(client: RawClient) -> None:
    await register(client)
    queues = TopicRoute(queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=3)]).to_json()
    assert (await client.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, queues)).code == 0
    assert (await client.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "Nothing"})).code == 0
    assert addresses(await route(client, "New")) != {}
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "New"})).code == 0
    assert await route(client, "New") is None
    elsewhere = {"topic": "TopicA", "clusterName": "elsewhere"}
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, elsewhere)).code == 0
    assert addresses(await route(client, "TopicA")) != {}


async def test_requests_in_the_binary_header_are_understood(client: RawClient) -> None:
    body = Registration(topic_config_serialize_wrapper=topic_table("TopicA", "TopicB")).to_json()
    assert (await client.ask(RequestCode.REGISTER_BROKER, registration_fields(), body, codec=1)).code == 0
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}, codec=1)
    assert TopicRoute.from_json(answer.body).broker_datas[0].broker_name == "broker-a"


async def test_a_one_way_registration_counts(client: RawClient) -> None:
    body = Registration(topic_config_serialize_wrapper=topic_table("TopicA", "TopicB")).to_json()
    client.send(client.request(RequestCode.REGISTER_BROKER, registration_fields(), body, flag=FLAG_ONEWAY))
    assert addresses(await route(client, "TopicA")) == {"broker-a": {0: ADDRESS}}


async def test_ten_thousand_topics_are_accepted_plain_and_compressed(client: RawClient) -> None:
    table = topic_table(*(f"Topic{i}" for i in range(10_000)))
    assert (await register(client, topics=table)).code == 0
    assert addresses(await route(client, "Topic9999")) == {"broker-a": {0: ADDRESS}}
    body = encode_compressed(Registration(topic_config_serialize_wrapper=table))
    assert len(zlib.decompress(body)) > 10 * len(body)
    fields = registration_fields("broker-b", address="10.0.0.2:10911")
    assert (await client.ask(RequestCode.REGISTER_BROKER, fields, body)).code == 0
    assert len(addresses(await route(client, "Topic0"))) == 2
