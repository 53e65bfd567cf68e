"""What each request to a broker needs. Java: the RocketMQAction annotations of the request headers

A message can be looked up, handed over or sent back by its place in the log under any topic's name, so the handlers compare the
topic; to look it up or hand it over without one, the whole cluster is needed. So it is to read where messages of all topics wait:
a right to every topic but one would be a right to that one as long as it is delayed, undecided or leased. (Apache asks for the
right to the waiting place's own name.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.access.handlers import USER_NEEDS
from orbitmq.access.needs import (
    Action,
    all_of,
    assignment,
    batch_ack,
    cluster,
    group,
    heartbeat,
    nothing,
    or_cluster,
    queue_locks,
    reply,
    topic,
    topic_list,
    topic_need,
)
from orbitmq.broker import names
from orbitmq.message.batch import decode_batch
from orbitmq.message.properties import MULTI_DISPATCH, MULTI_DISPATCH_SEPARATOR, decode_properties
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.send import SendMessage, SendMessageV2
from orbitmq.protocol.lease_texts import normal_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.access.needs import Need, NeedsOf
    from orbitmq.protocol.command import Command

_LOOK: Final = cluster(Action.GET)
_CHANGE: Final = cluster(Action.UPDATE)
_SEND_SHORT: Final = topic(Action.PUB, field="b")
_SEND: Final = topic(Action.PUB)


def _messages(*actions: Action, field: str = "topic") -> NeedsOf:
    """What is in the messages of the topic that a field names."""
    of_topic = topic(*actions, field=field)

    def needs(request: Command, cluster_name: str) -> Sequence[Need]:
        is_everybodys = names.is_waiting_place(request.fields.get(field, ""))
        return (_CHANGE if is_everybodys else of_topic)(request, cluster_name)

    return needs


_MEMBER: Final = group(Action.SUB)
_READ: Final = all_of(_messages(Action.SUB), _MEMBER)


def _settled(request: Command, cluster_name: str) -> Sequence[Need]:
    """What came back from a lease is settled under the retry topic of its group and topic, and takes what the lease took: by its older
    name it is the retry topic of another group. (A handle counts for no group but the one that it was given to.)
    """
    name, lessee = request.fields.get("topic", ""), request.fields.get("consumerGroup", "")
    origin = normal_topic(name, lessee) if lessee else name
    if not origin or origin == name:
        return _READ(request, cluster_name)
    of_origin = (
        _CHANGE(request, cluster_name) if names.is_waiting_place(origin) else (topic_need(origin, (Action.SUB,)),)
    )
    return [*of_origin, *_MEMBER(request, cluster_name)]


_LOOK_UP: Final = _messages(Action.SUB, Action.GET)
_LOOK_AT_TOPIC: Final = or_cluster(topic(Action.GET), Action.GET)
_LOOK_AT_GROUP: Final = or_cluster(group(Action.GET), Action.GET)
_OFFSETS_OF_TOPIC: Final = topic(Action.SUB, Action.GET)

_CLIENTS: Final[Mapping[int, NeedsOf]] = {
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.SEND_MESSAGE_V2: _SEND_SHORT,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_SHORT,
    RequestCode.SEND_REPLY_MESSAGE: reply(),
    RequestCode.SEND_REPLY_MESSAGE_V2: reply(field="b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: all_of(
        _messages(Action.SUB, field="originTopic"), group(Action.SUB, field="group")
    ),
    RequestCode.END_TRANSACTION: topic(Action.PUB),
    RequestCode.RECALL_MESSAGE: topic(Action.PUB),
    RequestCode.PULL_MESSAGE: _READ,
    RequestCode.LITE_PULL_MESSAGE: _READ,
    RequestCode.POP_MESSAGE: _READ,
    RequestCode.PEEK_MESSAGE: _READ,
    RequestCode.NOTIFICATION: _READ,
    RequestCode.POLLING_INFO: all_of(topic(Action.GET), group(Action.GET)),
    RequestCode.ACK_MESSAGE: _settled,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _settled,
    RequestCode.POP_ROLLBACK: _CHANGE,
    RequestCode.QUERY_ASSIGNMENT: assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _CHANGE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _LOOK,
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: group(Action.SUB),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: group(Action.SUB, Action.GET),
    RequestCode.CHECK_CLIENT_CONFIG: nothing,
    RequestCode.LOCK_BATCH_MQ: queue_locks,
    RequestCode.UNLOCK_BATCH_MQ: queue_locks,
    RequestCode.QUERY_CONSUMER_OFFSET: all_of(_OFFSETS_OF_TOPIC, group(Action.SUB, Action.GET)),
    RequestCode.UPDATE_CONSUMER_OFFSET: all_of(topic(Action.SUB, Action.UPDATE), group(Action.SUB, Action.UPDATE)),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSETS_OF_TOPIC,
    RequestCode.GET_MAX_OFFSET: _OFFSETS_OF_TOPIC,
    RequestCode.GET_MIN_OFFSET: _OFFSETS_OF_TOPIC,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _OFFSETS_OF_TOPIC,
    RequestCode.QUERY_MESSAGE: _LOOK_UP,
    RequestCode.VIEW_MESSAGE_BY_ID: or_cluster(_LOOK_UP, Action.GET),
    RequestCode.REGISTER_FILTER_SERVER: _CHANGE,
}

_OPERATORS: Final[Mapping[int, NeedsOf]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: topic(Action.CREATE),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _CHANGE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _CHANGE,
    RequestCode.DELETE_TOPIC_IN_BROKER: topic(Action.DELETE),
    RequestCode.GET_ALL_TOPIC_CONFIG: _LOOK,
    RequestCode.GET_TOPIC_CONFIG: _LOOK_AT_TOPIC,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LOOK,
    RequestCode.GET_TOPIC_STATS_INFO: _LOOK_AT_TOPIC,
    RequestCode.CLEAN_UNUSED_TOPIC: _CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _CHANGE,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: group(Action.DELETE, field="groupName"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LOOK,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: or_cluster(group(Action.GET, field="group"), Action.GET),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: or_cluster(group(Action.UPDATE, field="group"), Action.UPDATE),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _LOOK_AT_TOPIC,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: or_cluster(group(Action.GET, field="group"), Action.GET),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: or_cluster(group(Action.GET, field="group"), Action.GET),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _LOOK_AT_GROUP,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _LOOK,
    RequestCode.GET_ALL_PRODUCER_INFO: _LOOK,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _LOOK_AT_GROUP,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: all_of(or_cluster(_messages(Action.SUB), Action.UPDATE), group(Action.SUB)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: or_cluster(group(Action.GET, field="group"), Action.GET),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _LOOK,
    RequestCode.GET_ALL_DELAY_OFFSET: _LOOK,
    RequestCode.GET_TIMER_CHECK_POINT: _LOOK,
    RequestCode.GET_TIMER_METRICS: _LOOK,
    RequestCode.GET_CONSUME_STATS: all_of(
        _LOOK_AT_GROUP, _OFFSETS_OF_TOPIC, topic_list(Action.SUB, Action.GET, field="topicList")
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: _LOOK,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _LOOK_AT_TOPIC,
    RequestCode.QUERY_CORRECTION_OFFSET: _LOOK_AT_TOPIC,
    RequestCode.CLONE_GROUP_OFFSET: all_of(
        group(Action.GET, field="srcGroup"), or_cluster(group(Action.UPDATE, field="destGroup"), Action.UPDATE)
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: or_cluster(
        all_of(topic(Action.UPDATE), group(Action.UPDATE, field="group")), Action.UPDATE
    ),
    RequestCode.GET_BROKER_RUNTIME_INFO: _LOOK,
    RequestCode.VIEW_BROKER_STATS_DATA: _LOOK,
    RequestCode.GET_BROKER_CONFIG: _LOOK,
    RequestCode.UPDATE_BROKER_CONFIG: _CHANGE,
    RequestCode.QUERY_CONSUME_QUEUE: _LOOK_AT_TOPIC,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: or_cluster(topic(Action.UPDATE), Action.UPDATE),
    RequestCode.TRIGGER_DELETE_FILES: _CHANGE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CHANGE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _LOOK,
    RequestCode.SET_COMMITLOG_READ_MODE: _CHANGE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _CHANGE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _CHANGE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _LOOK,
    RequestCode.GET_BROKER_HA_STATUS: _LOOK,
    # Access files of 4.x: for admins alone, looking included.
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _CHANGE,
    RequestCode.DELETE_ACL_CONFIG: _CHANGE,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _CHANGE,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CHANGE,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _CHANGE,
}

# What changes something for everyone, and is not told of by its own handler.
AUDITED: Final = frozenset(
    {
        RequestCode.POP_ROLLBACK,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
    }
)

NEEDS: Final[Mapping[int, NeedsOf]] = {**_CLIENTS, **_OPERATORS, **USER_NEEDS}


def _light_queues(header_type: type[SendMessage] | type[SendMessageV2]) -> NeedsOf:
    """Those that a message, or one of a batch, names to be put into as well as into its topic."""

    def needs(request: Command, _cluster: str) -> Sequence[Need]:
        header = request.read(header_type)
        told: list[str | bytes] = [header.properties]
        if header.batch:
            told += [member.properties for member in decode_batch(request.body)]
        lists = [decode_properties(properties).get(MULTI_DISPATCH, "") for properties in told]
        queues = dict.fromkeys(name for named in lists for name in named.split(MULTI_DISPATCH_SEPARATOR) if name)
        return [topic_need(name, (Action.PUB,)) for name in queues]

    return needs


# Where light queues are on.
_WITH_LIGHT_QUEUES: Final[Mapping[int, NeedsOf]] = {
    code: all_of(NEEDS[code], _light_queues(header_type))
    for code, header_type in (
        (RequestCode.SEND_MESSAGE, SendMessage),
        (RequestCode.SEND_MESSAGE_V2, SendMessageV2),
        (RequestCode.SEND_BATCH_MESSAGE, SendMessageV2),
        (RequestCode.SEND_REPLY_MESSAGE, SendMessage),
        (RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageV2),
    )
}


def needs_of_broker(*, has_light_queues: bool) -> Mapping[int, NeedsOf]:
    return {**NEEDS, **_WITH_LIGHT_QUEUES} if has_light_queues else NEEDS
