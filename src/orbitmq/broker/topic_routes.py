"""The queues of a topic on all brokers, as a name server knows them. Java: TopicRouteInfoManager"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.errors import OrbitError
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.bodies.topics import PERM_READ
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import GetRoute

if TYPE_CHECKING:
    from orbitmq.broker.name_servers import NameServers
    from orbitmq.broker.topics import Topics
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_KNOWN_FOR_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 3.0


class TopicRoutes:
    def __init__(self, topics: Topics, name_servers: NameServers, broker_name: str, pool: Pool) -> None:
        self._topics = topics
        self._name_servers = name_servers
        self._broker_name = broker_name
        self._pool = pool
        self._known: dict[str, tuple[float, list[QueueRef]]] = {}

    async def readable_queues(self, topic: str) -> list[QueueRef] | None:
        """Sorted; None when nobody knows the topic, or nobody can be asked. A broker without name server knows its own.

        Light queues stand in no route: who asks this broker for one means the one that it has.
        """
        if topic.startswith(names.LIGHT_PREFIX):
            return [QueueRef(topic, self._broker_name, 0)]
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and known[0] > now:
            return known[1]
        if not self._name_servers.addresses:
            return self._our_own(topic)
        queues = await self._ask(topic)
        if queues is not None:
            self._known[topic] = (now + _KNOWN_FOR_SECONDS, queues)
        return queues

    async def close(self) -> None:
        await self._pool.close()

    async def _ask(self, topic: str) -> list[QueueRef] | None:
        for server in self._name_servers.addresses:
            try:
                answer = await self._pool.call(
                    server, new_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic=topic)), _ASK_SECONDS
                )
                if answer.code == ResponseCode.SUCCESS:
                    return _readable(topic, TopicRoute.from_json(answer.body))
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
            except OrbitError as error:
                logger.warning("cannot ask %s for the route of %s: %s", server, topic, error)
        return None

    def _our_own(self, topic: str) -> list[QueueRef] | None:
        config = self._topics.get(topic)
        if config is None or not config.perm & PERM_READ:
            return None
        return [QueueRef(topic, self._broker_name, queue_id) for queue_id in range(config.read_queue_nums)]


def _readable(topic: str, route: TopicRoute) -> list[QueueRef]:
    return sorted(
        QueueRef(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    )
