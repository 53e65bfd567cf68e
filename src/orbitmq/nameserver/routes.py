"""Request code -> the function that answers it, with exactly the state it may touch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orbitmq.access.gate import guarded
from orbitmq.access.handlers import access_routes
from orbitmq.nameserver import handlers
from orbitmq.nameserver.permissions import AUDITED, NEEDS
from orbitmq.nameserver.registry import UNIT_SUB_TOPICS, UNIT_SUB_TOPICS_OUTSIDE_UNITS, UNIT_TOPICS
from orbitmq.nameserver.route_express import RouteExpress
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.frame import CODEC_JSON

if TYPE_CHECKING:
    from orbitmq.access.gate import Door
    from orbitmq.access.users import Users
    from orbitmq.nameserver.departures import Departures
    from orbitmq.nameserver.kv_config import KvConfig
    from orbitmq.nameserver.opening import Opening
    from orbitmq.nameserver.other_cluster import OtherCluster
    from orbitmq.nameserver.registry import RouteRegistry
    from orbitmq.nameserver.route_answers import RouteAnswers
    from orbitmq.nameserver.settings import NameServerConfiguration
    from orbitmq.transport.connection import Handler, Routes
    from orbitmq.transport.express import ExpressRoutes
    from orbitmq.transport.load_limits import Refusals


def build_express(answers: RouteAnswers, opening: Opening) -> ExpressRoutes:
    return {(RequestCode.GET_ROUTEINFO_BY_TOPIC, CODEC_JSON): RouteExpress(answers, opening)}


def build_routes(
    *,
    registry: RouteRegistry,
    answers: RouteAnswers,
    departures: Departures,
    kv_config: KvConfig,
    configuration: NameServerConfiguration,
    opening: Opening,
    other_cluster: OtherCluster | None,
    users: Users,
    gate: Door | None,
    refusals: Refusals,
) -> Routes:
    by_flag = partial(handlers.get_topics_by_flag, registry, configuration)
    table: dict[int, Handler] = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: partial(handlers.get_route, answers, opening, other_cluster),
        RequestCode.REGISTER_BROKER: partial(
            handlers.register_broker, registry, departures, kv_config, configuration, refusals
        ),
        RequestCode.UNREGISTER_BROKER: partial(handlers.unregister_broker, departures),
        RequestCode.QUERY_DATA_VERSION: partial(handlers.query_data_version, registry),
        RequestCode.BROKER_HEARTBEAT: partial(handlers.broker_heartbeat, registry),
        RequestCode.GET_BROKER_MEMBER_GROUP: partial(handlers.get_broker_members, registry),
        RequestCode.GET_BROKER_CLUSTER_INFO: partial(handlers.get_cluster_info, registry),
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(handlers.wipe_write_permission, registry),
        RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(handlers.add_write_permission, registry),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: partial(handlers.get_all_topics, registry, configuration),
        RequestCode.GET_TOPICS_BY_CLUSTER: partial(handlers.get_cluster_topics, registry, configuration),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: partial(handlers.get_system_topics, registry),
        RequestCode.GET_UNIT_TOPIC_LIST: partial(by_flag, UNIT_TOPICS),
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(by_flag, UNIT_SUB_TOPICS),
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(by_flag, UNIT_SUB_TOPICS_OUTSIDE_UNITS),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: partial(handlers.delete_topic, registry),
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: partial(handlers.register_topic, registry),
        RequestCode.PUT_KV_CONFIG: partial(handlers.put_kv_config, kv_config),
        RequestCode.GET_KV_CONFIG: partial(handlers.get_kv_config, kv_config),
        RequestCode.DELETE_KV_CONFIG: partial(handlers.delete_kv_config, kv_config),
        RequestCode.GET_KVLIST_BY_NAMESPACE: partial(handlers.get_kv_namespace, kv_config),
        RequestCode.UPDATE_NAMESRV_CONFIG: partial(handlers.update_configuration, configuration),
        RequestCode.GET_NAMESRV_CONFIG: partial(handlers.get_configuration, configuration),
        **access_routes(users, enabled=gate is not None),
    }
    return guarded(table, NEEDS, gate, AUDITED)
