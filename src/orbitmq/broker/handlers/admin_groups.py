"""What operators do with consumer groups. Java: AdminBrokerProcessor"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq import fastjson
from orbitmq.broker import names
from orbitmq.broker.histograms import GROUP_CREATE_TIME
from orbitmq.broker.own_queues import check_position_is_open
from orbitmq.errors import BodyError, RequestFailed
from orbitmq.protocol.bodies.admin import GroupReadable, GroupSubscription
from orbitmq.protocol.bodies.groups import GroupList
from orbitmq.protocol.bodies.topics import TopicList
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.admin import DeleteGroup, GroupForbidden, GroupName, TopicAndGroup, TopicName
from orbitmq.storage.java_object import read_sent, to_json
from orbitmq.storage.tables import GroupConfig

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.leases.open_leases import OpenLeases
    from orbitmq.broker.leases.ordered import OrderedLeases
    from orbitmq.broker.pulling import Pulling
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.transport.connection import Connection


async def update_group(
    groups: Groups, stats: Statistics, clock: Clock, request: Command, connection: Connection
) -> Command:
    body = fastjson.loads(request.body)
    if not isinstance(body, dict):
        raise BodyError("a group's settings are an object")
    with stats.histogram(GROUP_CREATE_TIME).timed(clock):
        await groups.update([read_sent(GroupConfig, body)])
    return ok()


async def update_groups(
    groups: Groups, stats: Statistics, clock: Clock, request: Command, connection: Connection
) -> Command:
    """Several at once, all or none."""
    body = fastjson.loads(request.body)
    listed = body.get("groupConfigList") if isinstance(body, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise BodyError("groupConfigList is missing")
    with stats.histogram(GROUP_CREATE_TIME).timed(clock):
        await groups.update([read_sent(GroupConfig, entry) for entry in listed])
    return ok()


async def all_groups(groups: Groups, request: Command, connection: Connection) -> Command:
    """All in one answer, also to those who ask for a page: without a total in it they ask no further."""
    return ok(body=await asyncio.to_thread(to_json, groups.table()))


async def group_config(groups: Groups, request: Command, connection: Connection) -> Command:
    """Asking for a group creates it where groups are created by use, as in Java."""
    config = groups.find(request.read(GroupName).group)
    if config is None:
        raise RequestFailed(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return ok(body=to_json(config))


async def delete_group(
    groups: Groups,
    offsets: ConsumerOffsets,
    pulling: Pulling,
    open_leases: OpenLeases,
    ordered_leases: OrderedLeases,
    stats: Statistics,
    request: Command,
    connection: Connection,
) -> Command:
    header = request.read(DeleteGroup)
    forgets_offsets = header.clean_offset or header.remove_offset
    for topic in offsets.topics_of(header.group_name) if forgets_offsets else ():
        check_position_is_open(header.group_name, topic)
    await groups.delete(header.group_name)
    if forgets_offsets:
        offsets.forget_group(header.group_name)
    pulling.forget(header.group_name)
    open_leases.forget_group(header.group_name)
    ordered_leases.forget_group(header.group_name)
    stats.forget(header.group_name)
    return ok()


async def group_forbidden(groups: Groups, topics: Topics, request: Command, connection: Connection) -> Command:
    """Forbid or allow a group to read a topic, or only ask. What is forbidden is kept: both must be there."""
    header = request.read(GroupForbidden)
    if header.readable is not None:
        names.check_group_name(header.group)
        names.check_topic_name(header.topic)
        if not header.readable:
            topics.require(header.topic)
            groups.require(header.group)
        await groups.set_may_read(header.group, header.topic, header.readable)
    readable = groups.may_read(header.group, header.topic)
    return ok(body=GroupReadable(group=header.group, topic=header.topic, readable=readable).to_json())


async def groups_of_topic(
    clients: Clients, offsets: ConsumerOffsets, request: Command, connection: Connection
) -> Command:
    """Who reads a topic: groups that are online and those that have been."""
    topic = request.read(TopicName).topic
    found = dict.fromkeys([*clients.groups_subscribing(topic), *offsets.groups_of(topic)])
    return ok(body=GroupList(group_list=list(found)).to_json())


async def topics_of_group(
    offsets: ConsumerOffsets, registration: Registration, request: Command, connection: Connection
) -> Command:
    group = request.read(GroupName).group
    found = TopicList(topic_list=offsets.topics_of(group), broker_addr=str(registration.address))
    return ok(body=found.to_json())


async def subscription_of_group(clients: Clients, request: Command, connection: Connection) -> Command:
    header = request.read(TopicAndGroup)
    members = clients.consumers(header.group)
    subscription = members.subscriptions.get(header.topic or "") if members is not None else None
    found = GroupSubscription(group=header.group, topic=header.topic, subscription_data=subscription)
    return ok(body=found.to_json())
