"""Which queues a read is about, and where they begin and end now."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from orbitmq.client import questions
from orbitmq.client.cluster import refusal
from orbitmq.client.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from orbitmq.client.namespaces import unwrapped, wrapped
from orbitmq.errors import ConfigError, RequestFailed, TransportError
from orbitmq.protocol.bodies.route import ClusterInfo
from orbitmq.protocol.bodies.topics import TopicList
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.spark.queue_offsets import listed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.routes import Route
    from orbitmq.message import QueueRef
    from orbitmq.spark.source_options import SourceOptions

T = TypeVar("T")

_SECONDS: Final = 5.0
_AT_ONCE: Final = 256  # questions on their way at one time
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"


class Found(NamedTuple):
    """The queues of a read, and the brokers that the routes name."""

    queues: list[QueueRef]
    brokers: set[str]


class End(NamedTuple):
    """One beyond the last message of a queue. A slave may not have got all yet: only of a master it is the end."""

    offset: int
    is_of_master: bool


class Extent(NamedTuple):
    """What a queue holds: offsets from `low` to before `high`. Not all of it, where a slave said so that may be behind."""

    low: int
    high: int
    is_whole: bool = True


async def greet(cluster: Cluster) -> None:
    """TransportError where no name server answers. Whatever one says will do."""
    await cluster.name_servers.call(request(RequestCode.GET_BROKER_CLUSTER_INFO), _SECONDS)


async def find_queues(cluster: Cluster, options: SourceOptions, *, may_be_none: bool) -> Found:
    """Asks the name server now. ConfigError for what is named and not there; a pattern may match nothing yet."""
    if options.assigned:
        return await _assigned(cluster, options.assigned)
    topics = list(options.topics) or await _matching(cluster, options.pattern, options.access.namespace)
    if not topics and not may_be_none:
        raise ConfigError(f"no topic matches {options.pattern!r}", hint="the whole name must match the pattern")
    routes = await _routes(cluster, topics)
    queues = [queue for route in routes for queue in route.readable]
    return Found(sorted(queues), {name for route in routes for name in route.brokers})


async def extents(cluster: Cluster, queues: Iterable[QueueRef]) -> dict[QueueRef, Extent]:
    wanted = list(queues)
    lows, ends = await asyncio.gather(
        min_offsets(cluster, wanted), each(wanted, lambda queue: queue_end(cluster, queue))
    )
    return {queue: Extent(lows[queue], end.offset, end.is_of_master) for queue, end in ends.items()}


async def queue_end(cluster: Cluster, queue: QueueRef, from_slaves: bool = True) -> End:
    """TransportError where only a slave is there and slaves are not to be read."""
    is_of_master = cluster.master(queue.broker_name) is not None  # who is asked, if there is one
    if not is_of_master and not from_slaves:
        raise TransportError(f"broker {queue.broker_name!r} has no master now", hint="is it running?")
    return End(await questions.max_offset(cluster, queue), is_of_master)


async def min_offsets(cluster: Cluster, queues: Sequence[QueueRef]) -> dict[QueueRef, int]:
    return await each(queues, lambda queue: questions.min_offset(cluster, queue))


async def each(queues: Sequence[QueueRef], ask: Callable[[QueueRef], Awaitable[T]]) -> dict[QueueRef, T]:
    """One question a queue, many on their way at once."""
    answers: dict[QueueRef, T] = {}
    for begin in range(0, len(queues), _AT_ONCE):
        some = queues[begin : begin + _AT_ONCE]
        answers.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
    return answers


async def _assigned(cluster: Cluster, queues: Sequence[QueueRef]) -> Found:
    routes = await _routes(cluster, dict.fromkeys(queue.topic for queue in queues))
    there = {queue for route in routes for queue in route.readable}
    missing = [queue for queue in queues if queue not in there]
    if missing:
        raise ConfigError(
            f"option assign names what is not there: {listed(missing)}", hint=f"there are {listed(there)}"
        )
    return Found(list(queues), {name for route in routes for name in route.brokers})


async def _routes(cluster: Cluster, topics: Iterable[str]) -> list[Route]:
    routes = []
    for topic in topics:
        route = await cluster.fetch_route(topic)
        if route is None:
            await _check_brokers(cluster)
            route = await cluster.fetch_route(topic)  # its broker may have come back in between
        if route is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic!r} does not exist",
                hint="check its name, or create it; subscribePattern also finds topics that come later",
            )
        routes.append(route)
    return routes


async def _check_brokers(cluster: Cluster) -> None:
    """TransportError where there are none: topics go with their last broker, and come back with it when it has restarted."""
    answer = await cluster.name_servers.call(request(RequestCode.GET_BROKER_CLUSTER_INFO), _SECONDS)
    if answer.code == ResponseCode.SUCCESS and not ClusterInfo.from_json(answer.body).broker_addr_table:
        raise TransportError("the name server knows no broker now", hint="is one running, and registered there?")


async def _matching(cluster: Cluster, pattern: str, namespace: str) -> list[str]:
    """Topics of the namespace that somebody made: the name server lists those of the system, and one for each cluster and broker, too."""
    topics = TopicList.from_json(await _asked(cluster, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).topic_list
    world = ClusterInfo.from_json(await _asked(cluster, RequestCode.GET_BROKER_CLUSTER_INFO))
    own = {*world.broker_addr_table, *world.cluster_addr_table}
    own |= {f"{name}{_REPLY_SUFFIX}" for name in world.cluster_addr_table}
    matches = re.compile(pattern).fullmatch
    return sorted(
        topic
        for topic in topics
        if wrapped(namespace, topic) == topic
        and matches(unwrapped(namespace, topic))
        and topic not in own
        and _is_for_users(topic, pattern)
    )


async def _asked(cluster: Cluster, code: int) -> bytes:
    answer = await cluster.name_servers.call(request(code), _SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer.body


def _is_for_users(topic: str, pattern: str) -> bool:
    """Retries and dead letters are read by patterns that name them: `%DLQ%.*`."""
    return not is_system_topic(topic) and ("%" in pattern or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
