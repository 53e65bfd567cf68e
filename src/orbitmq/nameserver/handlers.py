"""What the name server answers, one function per request. `routes.py` says which code calls which.

Java: DefaultRequestProcessor, ClientRequestProcessor, ClusterTestRequestProcessor
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.configuration import change
from orbitmq.errors import InflatedTooLarge, RequestFailed
from orbitmq.nameserver.kv_config import ORDER_TOPICS, KvConfig
from orbitmq.nameserver.registry import BrokerAnnouncement, Departure, RouteRegistry
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.registration import body_checksum, decode_listing
from orbitmq.protocol.bodies.route import BrokerMembersBody, KvTable, TopicRoute
from orbitmq.protocol.bodies.topics import DataVersion, TopicList
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers import nameserver as headers
from orbitmq.protocol.properties_text import format_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.nameserver.departures import Departures
    from orbitmq.nameserver.opening import Opening
    from orbitmq.nameserver.other_cluster import OtherCluster
    from orbitmq.nameserver.route_answers import RouteAnswers
    from orbitmq.nameserver.settings import NameServerConfiguration
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.load_limits import Refusals

logger = logging.getLogger(__name__)


# ---- routes, for clients


async def get_route(
    answers: RouteAnswers,
    opening: Opening,
    other_cluster: OtherCluster | None,
    request: Command,
    connection: Connection,
) -> Command:
    opening.check()
    header = request.read(headers.GetRoute)
    standard = _is_modern(request) or bool(header.accept_standard_json_only)
    try:
        if header.zone_mode and header.zone_name:
            return ok(body=answers.body_in_zone(header.topic, header.zone_name, standard=standard))
        return ok(body=answers.body(header.topic, standard=standard))
    except RequestFailed:
        if other_cluster is None:
            raise
        return ok(body=await other_cluster.route(header.topic))


# ---- brokers


async def register_broker(
    registry: RouteRegistry,
    departures: Departures,
    kv_config: KvConfig,
    configuration: NameServerConfiguration,
    refusals: Refusals,
    request: Command,
    connection: Connection,
) -> Command:
    header = request.read(headers.RegisterBroker)
    if header.body_crc32 and header.body_crc32 != body_checksum(request.body):
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "crc32 not match", hint="the body was damaged on its way")
    most = configuration.settings.max_decompressed_bytes
    try:
        listing = decode_listing(request.body, request.version, most)
    except InflatedTooLarge:
        raise refusals.refused(
            "orbitmq.maxDecompressedBytes", most, "bytes of an inflated registration", ResponseCode.INVALID_PARAMETER
        ) from None
    departures.flush()
    registered = registry.register(
        BrokerAnnouncement(
            cluster=header.cluster_name,
            name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            zone=header.zone_name,
            topics=listing.topic_config_serialize_wrapper,
            filter_servers=listing.filter_server_list,
        ),
        connection,
    )
    if registered is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "register broker failed", hint="register all topics first")
    answer_header = headers.BrokerRegistered(
        ha_server_addr=registered.master_ha_address, master_addr=registered.master_address
    )
    order_topics = kv_config.namespace(ORDER_TOPICS)
    if configuration.settings.return_order_topic_config_to_broker and order_topics is not None:
        return ok(answer_header, KvTable(table=order_topics).to_json())
    return ok(answer_header)


async def unregister_broker(departures: Departures, request: Command, connection: Connection) -> Command:
    header = request.read(headers.UnregisterBroker)
    departures.ask(Departure(header.cluster_name, header.broker_addr, header.broker_name, header.broker_id))
    return ok()


async def query_data_version(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    header = request.read(headers.QueryDataVersion)
    theirs = DataVersion.from_json(request.body)
    ours = registry.data_version(header.cluster_name, header.broker_addr)
    registry.heard_from(header.cluster_name, header.broker_addr)
    verdict = headers.DataVersionVerdict(changed=ours != theirs)
    return ok(verdict, ours.to_json() if ours is not None else b"")


async def broker_heartbeat(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    header = request.read(headers.BrokerHeartbeat)
    registry.heard_from(header.cluster_name, header.broker_addr)
    return ok()


async def get_broker_members(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    header = request.read(headers.MemberGroup)
    body = BrokerMembersBody(broker_member_group=registry.members(header.cluster_name, header.broker_name))
    return ok(body=body.to_json(standard=_is_modern(request)))


async def get_cluster_info(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    return ok(body=registry.cluster_info().to_json(standard=_is_modern(request)))


def _is_modern(request: Command) -> bool:
    return request.version >= versions.FIRST_WITH_STANDARD_JSON


# ---- topics, for operators


async def wipe_write_permission(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    name = request.read(headers.BrokerName).broker_name
    count = registry.wipe_write_permission(name)
    logger.info("%s took the write permission from %d topics of %s", connection.peer, count, name)
    return ok(headers.WritePermissionWiped(wipe_topic_count=count))


async def add_write_permission(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    name = request.read(headers.BrokerName).broker_name
    count = registry.add_write_permission(name)
    logger.info("%s gave the write permission to %d topics of %s", connection.peer, count, name)
    return ok(headers.WritePermissionAdded(add_topic_count=count))


async def get_all_topics(
    registry: RouteRegistry, configuration: NameServerConfiguration, request: Command, connection: Connection
) -> Command:
    if not configuration.settings.enable_all_topic_list:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "disable")
    return ok(body=TopicList(topic_list=registry.topics()).to_json())


async def get_cluster_topics(
    registry: RouteRegistry, configuration: NameServerConfiguration, request: Command, connection: Connection
) -> Command:
    _check_topic_lists_enabled(configuration)
    cluster = request.read(headers.ClusterName).cluster
    return ok(body=TopicList(topic_list=registry.topics_of_cluster(cluster)).to_json())


async def get_system_topics(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    names, broker_address = registry.system_topics()
    return ok(body=TopicList(topic_list=names, broker_addr=broker_address).to_json())


async def get_topics_by_flag(
    registry: RouteRegistry,
    configuration: NameServerConfiguration,
    flags: Mapping[str, int],
    request: Command,
    connection: Connection,
) -> Command:
    _check_topic_lists_enabled(configuration)
    return ok(body=TopicList(topic_list=registry.topics_with_flags(**flags)).to_json())


async def delete_topic(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    header = request.read(headers.DeleteTopic)
    registry.delete_topic(header.topic, header.cluster_name)
    logger.info("%s deleted the route of topic %s", connection.peer, header.topic)
    return ok()


async def register_topic(registry: RouteRegistry, request: Command, connection: Connection) -> Command:
    topic = request.read(headers.RegisterTopic).topic
    if request.body:
        registry.register_topic(topic, TopicRoute.from_json(request.body).queue_datas)
    return ok()


def _check_topic_lists_enabled(configuration: NameServerConfiguration) -> None:
    if not configuration.settings.enable_topic_list:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "disable")


# ---- settings kept for operators


async def put_kv_config(kv_config: KvConfig, request: Command, connection: Connection) -> Command:
    header = request.read(headers.PutKvConfig)
    await kv_config.put(header.namespace, header.key, header.value)
    return ok()


async def get_kv_config(kv_config: KvConfig, request: Command, connection: Connection) -> Command:
    header = request.read(headers.KvConfigKey)
    value = kv_config.get(header.namespace, header.key)
    if value is None:
        raise RequestFailed(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}"
        )
    return ok(headers.KvConfigValue(value=value))


async def delete_kv_config(kv_config: KvConfig, request: Command, connection: Connection) -> Command:
    header = request.read(headers.KvConfigKey)
    await kv_config.delete(header.namespace, header.key)
    return ok()


async def get_kv_namespace(kv_config: KvConfig, request: Command, connection: Connection) -> Command:
    namespace = request.read(headers.KvNamespace).namespace
    table = kv_config.namespace(namespace)
    if table is None:
        raise RequestFailed(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
    return ok(body=KvTable(table=table).to_json())


# ---- the server's own settings


async def get_configuration(
    configuration: NameServerConfiguration, request: Command, connection: Connection
) -> Command:
    return ok(body=format_properties(configuration.as_properties()).encode())


async def update_configuration(
    configuration: NameServerConfiguration, request: Command, connection: Connection
) -> Command:
    await change(configuration, request.body, str(connection.peer))
    return ok()
