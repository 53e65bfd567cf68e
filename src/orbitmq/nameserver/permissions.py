"""What each request to a name server needs. Java: the RocketMQAction annotations of the request headers"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.access.handlers import USER_NEEDS
from orbitmq.access.needs import Action, cluster, topic
from orbitmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.access.needs import Need, NeedsOf
    from orbitmq.protocol.command import Command

_ROUTE: Final = topic(Action.PUB, Action.SUB, Action.GET)
_OF_REPLIES: Final = "_REPLY_TOPIC"
_LOOK: Final = cluster(Action.GET)
_CHANGE: Final = cluster(Action.UPDATE)


def _route(request: Command, cluster_name: str) -> Sequence[Need]:
    """Where replies go needs no right of brokers, so whoever answers may know where that is."""
    return () if request.fields.get("topic", "").endswith(_OF_REPLIES) else _ROUTE(request, cluster_name)


# What operators change. Brokers announce themselves every few seconds; that is no news.
AUDITED: Final = frozenset(
    {
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)

NEEDS: Final[Mapping[int, NeedsOf]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.REGISTER_BROKER: _CHANGE,
    RequestCode.UNREGISTER_BROKER: _CHANGE,
    RequestCode.QUERY_DATA_VERSION: _LOOK,
    RequestCode.BROKER_HEARTBEAT: _CHANGE,
    RequestCode.GET_BROKER_MEMBER_GROUP: _LOOK,
    RequestCode.GET_BROKER_CLUSTER_INFO: _LOOK,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _CHANGE,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _CHANGE,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _LOOK,
    RequestCode.GET_TOPICS_BY_CLUSTER: _LOOK,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _LOOK,
    RequestCode.GET_UNIT_TOPIC_LIST: _LOOK,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _LOOK,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _LOOK,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _CHANGE,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _CHANGE,
    RequestCode.PUT_KV_CONFIG: _CHANGE,
    RequestCode.GET_KV_CONFIG: _LOOK,
    RequestCode.DELETE_KV_CONFIG: _CHANGE,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _LOOK,
    RequestCode.UPDATE_NAMESRV_CONFIG: _CHANGE,
    RequestCode.GET_NAMESRV_CONFIG: _LOOK,
    **USER_NEEDS,
}
