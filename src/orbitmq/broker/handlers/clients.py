"""Clients: heartbeats, leaving, who else is there, and who may consume in order.

Java: ClientManageProcessor, ConsumerManageProcessor, parts of AdminBrokerProcessor
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.subscriptions import wanted
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.groups import CheckClient, ConsumerIds, Heartbeat, LockQueues, QueuesLocked
from orbitmq.protocol.bodies.topics import SYS_FLAG_UNIT_SUB
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.groups import ConsumerGroup, HeartbeatTaken, UnregisterClient
from orbitmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.queue_locks import QueueLocks
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topics import Topics
    from orbitmq.transport.connection import Connection

_MOST_OF_A_CLIENT: Final = 10_000
_LONGEST_NAME_IN_A_LOCK: Final = 1_000


async def heartbeat(
    clients: Clients, groups: Groups, topics: Topics, is_guarded: bool, request: Command, connection: Connection
) -> Command:
    """Note who is there. A group that must not be created is passed over in silence: its pulls will say so."""
    beat = _checked(Heartbeat.from_json(request.body))
    access_key = request.fields.get(ACCESS_KEY, "") if is_guarded else ""
    subscription_changed = beat.heartbeat_fingerprint == 0
    for data in beat.consumer_data_set:
        if beat.without_sub:
            subscription_changed |= not clients.refresh_consumer(data.group_name, connection)
            continue
        config = groups.find(data.group_name)
        if config is None:
            continue
        if config.retry_queue_nums > 0:
            sys_flag = SYS_FLAG_UNIT_SUB if data.unit_mode else 0
            topics.create_internal(names.retry_topic(data.group_name), config.retry_queue_nums, sys_flag=sys_flag)
        clients.register_consumer(data, connection, beat.client_id, request.language, request.version)
    for producer in beat.producer_data_set:
        clients.register_producer(
            producer.group_name, connection, beat.client_id, request.language, request.version, access_key
        )
    return ok(HeartbeatTaken(supports_v2=True, subscription_changed=subscription_changed))


def _checked(beat: Heartbeat) -> Heartbeat:
    """Each group and subscription is remembered while the client is there: RequestFailed for one that has more than any has."""
    groups = len(beat.producer_data_set) + len(beat.consumer_data_set)
    subscriptions = max((len(data.subscription_data_set) for data in beat.consumer_data_set), default=0)
    for count, what in ((groups, "groups of one client"), (subscriptions, "subscriptions of one group")):
        if count > _MOST_OF_A_CLIENT:
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"[LIMIT] a heartbeat with {count:,} {what}: at most {_MOST_OF_A_CLIENT:,}",
                hint="let more than one client have them",
            )
    return beat


async def unregister_client(clients: Clients, request: Command, connection: Connection) -> Command:
    header = request.read(UnregisterClient)
    clients.unregister(connection, header.client_id, header.producer_group or "", header.consumer_group or "")
    return ok()


async def consumer_ids(clients: Clients, request: Command, connection: Connection) -> Command:
    group = request.read(ConsumerGroup).consumer_group
    members = clients.consumers(group)
    if members is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return ok(body=ConsumerIds(consumer_id_list=members.client_ids()).to_json())


async def check_client(configuration: BrokerConfiguration, request: Command, connection: Connection) -> Command:
    """Whether a subscription could be served."""
    subscription = CheckClient.from_json(request.body).subscription_data
    enabled = configuration.settings.enable_property_filter
    wanted(subscription.sub_string, subscription.expression_type, filters_enabled=enabled)
    return ok()


async def lock_queues(locks: QueueLocks, topics: Topics, request: Command, connection: Connection) -> Command:
    """Of queues that there are: what is locked is remembered."""
    wanted = LockQueues.from_json(request.body)
    names.check_group_name(wanted.consumer_group)
    longest = max(len(wanted.client_id), *(len(queue.broker_name) for queue in wanted.mq_set), 0)
    if longest > _LONGEST_NAME_IN_A_LOCK:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"a lock with the name of a client or broker of {longest:,} characters: at most {_LONGEST_NAME_IN_A_LOCK:,}",
            hint="give the client a shorter instanceName",
        )
    known = [queue for queue in wanted.mq_set if topics.has_queue(queue.topic, queue.queue_id)]
    held = locks.lock(wanted.consumer_group, wanted.client_id, known)
    return ok(body=QueuesLocked(lock_ok_mq_set=held).to_json())


async def unlock_queues(locks: QueueLocks, request: Command, connection: Connection) -> Command:
    wanted = LockQueues.from_json(request.body)
    locks.unlock(wanted.consumer_group, wanted.client_id, wanted.mq_set)
    return ok()
