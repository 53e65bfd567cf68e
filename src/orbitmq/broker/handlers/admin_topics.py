"""What operators do with topics. Java: AdminBrokerProcessor"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from orbitmq import fastjson
from orbitmq.broker import names, retry_topics, statistics
from orbitmq.broker.histograms import TOPIC_CREATE_TIME
from orbitmq.errors import BodyError, RequestFailed
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import QueueRange, TopicStats
from orbitmq.protocol.bodies.topics import TopicList
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.admin import CreateTopic, TopicName
from orbitmq.storage.commit_log import LIGHT_QUEUE_PREFIX
from orbitmq.storage.java_object import read_sent, to_json, write_object
from orbitmq.storage.tables import DataVersion, TopicConfig

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.leases.open_leases import OpenLeases
    from orbitmq.broker.leases.ordered import OrderedLeases
    from orbitmq.broker.pulling import Pulling
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection


async def update_topic(
    topics: Topics,
    registration: Registration,
    stats: Statistics,
    clock: Clock,
    request: Command,
    connection: Connection,
) -> Command:
    header = request.read(CreateTopic)
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag,
        order=header.order,
    )
    with _timed(stats, clock, topics.is_system(header.topic)):
        await topics.update([(config, header.attributes or "")])
        await registration.until_told(header.topic)
    return ok()


async def update_topics(
    topics: Topics,
    registration: Registration,
    stats: Statistics,
    clock: Clock,
    request: Command,
    connection: Connection,
) -> Command:
    """Several at once, all or none. Their attributes are changes, too: {"+message.type": "FIFO"}."""
    body = fastjson.loads(request.body)
    listed = body.get("topicConfigList") if isinstance(body, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise BodyError("topicConfigList is missing")
    configs = [read_sent(TopicConfig, entry) for entry in listed]
    with _timed(stats, clock, any(topics.is_system(config.topic_name) for config in configs)):
        await topics.update((config, _changes(config.attributes)) for config in configs)
        for config in configs:
            await registration.until_told(config.topic_name)
    return ok()


def _timed(stats: Statistics, clock: Clock, is_system: bool) -> AbstractContextManager[None]:
    return stats.histogram(TOPIC_CREATE_TIME).timed(clock, "true" if is_system else "false")


def _changes(attributes: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" if key.startswith("+") else key for key, value in attributes.items())


async def refuse_static_topic(request: Command, connection: Connection) -> Command:
    raise RequestFailed(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"static topics are not supported: {request.read(CreateTopic).topic[:300]}",
        hint="create an ordinary topic",
    )


async def all_topics(topics: Topics, request: Command, connection: Connection) -> Command:
    """All in one answer, also to those who ask for a page: without a total in it they ask no further."""
    return ok(body=await asyncio.to_thread(_table, topics.version, dict(topics.all())))


def _table(version: DataVersion, topics: dict[str, TopicConfig]) -> bytes:
    """In a thread: ten thousand topics would hold up everybody else for a tenth of a second."""
    return msgspec.json.encode(
        {
            "dataVersion": write_object(version),
            "mappingDataVersion": write_object(DataVersion()),
            "topicConfigTable": {topic: write_object(config) for topic, config in topics.items()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
    )


async def topic_config(topics: Topics, request: Command, connection: Connection) -> Command:
    topic = request.read(TopicName).topic
    config = topics.get(topic)
    if config is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic[:300]}")
    return ok(body=to_json(config))


async def system_topics(topics: Topics, request: Command, connection: Connection) -> Command:
    return ok(body=TopicList(topic_list=topics.system_topics()).to_json())


async def topic_stats(
    topics: Topics,
    store: Store,
    stats: Statistics,
    configuration: BrokerConfiguration,
    request: Command,
    connection: Connection,
) -> Command:
    """Where each queue begins and ends, empty ones too, and when its last message came."""
    topic = request.read(TopicName).topic
    config = topics.get(topic)
    if config is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
    ranges = {}
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
        low, high = store.queue_range(topic, queue_id)
        last_ms = store.stored_at_ms(topic, queue_id, high - 1) if high > low else None
        queue = QueueKey(broker_name=configuration.settings.broker_name, queue_id=queue_id, topic=topic)
        ranges[queue] = QueueRange(min_offset=low, max_offset=high, last_update_timestamp=last_ms or 0)
    counter = stats.find(statistics.TOPIC_PUT_NUMS, topic)
    return ok(body=TopicStats(ranges, counter.minute().per_second if counter is not None else 0.0).to_json())


async def delete_topic(
    topics: Topics,
    groups: Groups,
    store: Store,
    offsets: ConsumerOffsets,
    sending: Sending,
    pulling: Pulling,
    timers: Timers | None,
    compacted: CompactedTopics | None,
    open_leases: OpenLeases,
    ordered_leases: OrderedLeases,
    stats: Statistics,
    configuration: BrokerConfiguration,
    request: Command,
    connection: Connection,
) -> Command:
    """The topic, its queues, the groups' offsets in it and, if so configured, the retry topics that belong to it alone."""
    topic = request.read(TopicName).topic
    if not topic.strip():
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if topics.is_system(topic):
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
    doomed = [topic]
    if configuration.settings.clear_retry_topic_when_delete_topic:
        for group in offsets.groups_of(topic):
            newer, older = names.lease_retry_topics(group, topic)
            # The older name may be another's as well, who has nothing to do with this topic.
            own = (newer,) if retry_topics.is_shared(groups, topics, group, topic) else (newer, older)
            doomed += [retry for retry in own if topics.get(retry) is not None]
    for name in doomed:
        store.delete_topic(name)  # what the disk may refuse comes first: then all stays as it is
    for name in doomed:
        offsets.forget_topic(name)
        sending.forget_topic(name)
        pulling.forget(name)
        open_leases.forget_topic(name)
        ordered_leases.forget_topic(name)
        stats.forget(name)
        if timers is not None:
            timers.counts.forget(name)
        if compacted is not None:
            compacted.forget_topic(name)
    # Last: while its table is being saved, a send may make the topic again, and what it stores stays.
    await topics.delete(doomed)
    return ok()


async def clean_unused_topics(topics: Topics, store: Store, request: Command, connection: Connection) -> Command:
    """Queues of topics that do not exist any more go. Light queues have no topic of their own, and stay."""
    for topic in store.topics() - topics.all().keys():
        if not topics.is_system(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX):
            store.delete_topic(topic)
    return ok()
