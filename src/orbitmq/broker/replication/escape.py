"""Messages that a slave in its master's place has to store, and cannot: they are sent to another master of the cluster.

Java: EscapeBridge
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names
from orbitmq.errors import OrbitError
from orbitmq.message import properties as keys
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.sysflags import TRANSACTION_MASK, TRANSACTION_PREPARED
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.bodies.topics import PERM_WRITE
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from orbitmq.broker.name_servers import NameServers
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.message.record import RawRecord
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_SECONDS: Final = 3.0
_MASTER_ID: Final = 0
_DEFAULT_QUEUES: Final = 4
# What a message was told on its way through this broker, or would make the other one delay it again.
_OF_THIS_BROKER: Final = (
    keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.TRANSACTION_ID, keys.TIMER_OUT_MS, keys.CLUSTER, keys.REGION, keys.TRACE_ON,
)  # fmt: skip
_REQUESTS: Final = (
    keys.DELAY, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS, keys.PREPARED,
)  # fmt: skip


class _Goal(NamedTuple):
    master: Address
    broker_name: str
    queue_id: int


class Escape:
    def __init__(self, configuration: BrokerConfiguration, name_servers: NameServers, pool: Pool) -> None:
        self._configuration = configuration
        self._name_servers = name_servers
        self._pool = pool
        self._goals: dict[str, list[_Goal]] = {}
        self._turn = 0
        self._failure = ""

    def forget_routes(self) -> None:
        self._goals.clear()

    async def deliver(self, topic: str, message: RawRecord, **changed: str) -> bool:
        """A message whose moment has come. False: nobody took it, try again."""
        properties = decode_properties(message.properties)
        for key in (*_OF_THIS_BROKER, *_REQUESTS):
            properties.pop(key, None)
        return await self._send(topic, message, {**properties, **changed}, message.sys_flag & ~TRANSACTION_MASK)

    async def begin_transaction(self, message: RawRecord) -> bool:
        """A half message: the other broker keeps it as one, and asks its producer."""
        properties = decode_properties(message.properties)
        topic = properties.get(keys.REAL_TOPIC, "")
        for key in _OF_THIS_BROKER:
            properties.pop(key, None)
        properties[keys.PREPARED] = "true"
        sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
        return await self._send(topic, message, properties, sys_flag)

    async def _send(self, topic: str, message: RawRecord, properties: dict[str, str], sys_flag: int) -> bool:
        settings = self._configuration.settings
        own_group = f"InnerProducerGroup_{settings.broker_name}_{settings.broker_id}"
        try:
            goal = await self._goal(topic)
            header = SendMessageV2(
                producer_group=properties.get(keys.PRODUCER_GROUP) or own_group,
                topic=topic,
                default_topic=names.AUTO_CREATE_TOPIC,
                default_topic_queue_nums=_DEFAULT_QUEUES,
                queue_id=goal.queue_id,
                sys_flag=sys_flag,
                born_timestamp=message.born_at_ms,
                flag=message.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=message.reconsume_times,
                bname=goal.broker_name,
            )
            request = new_request(RequestCode.SEND_MESSAGE_V2, header, bytes(message.body))
            answer = await self._pool.call(goal.master, request, _SECONDS)
        except OrbitError as error:
            failure = str(error)
        else:
            failure = f"{goal.broker_name} says {answer.code}: {answer.remark}" if answer.code else ""
        if failure:
            self._goals.pop(topic, None)
            if failure != self._failure:
                logger.warning("messages of %s wait, no other master takes them: %s", topic, failure)
        self._failure = failure
        return not failure

    async def _goal(self, topic: str) -> _Goal:
        goals = self._goals.get(topic)
        if goals is None:
            goals = await self._look_up(topic) or await self._look_up(names.AUTO_CREATE_TOPIC)
            if not goals:
                raise OrbitError("there is no other master in this cluster that has the topic, or would create it")
            self._goals[topic] = goals
        self._turn += 1
        return goals[self._turn % len(goals)]

    async def _look_up(self, topic: str) -> list[_Goal]:
        query = new_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic=topic))
        for server in self._name_servers.addresses:
            try:
                answer = await self._pool.call(server, query, _SECONDS)
            except OrbitError:
                continue  # the next one may answer
            if answer.code != ResponseCode.SUCCESS:
                return []
            route = TopicRoute.from_json(answer.body)
            masters = {
                broker.broker_name: broker.broker_addrs[_MASTER_ID]
                for broker in route.broker_datas
                if _MASTER_ID in broker.broker_addrs
            }
            own = self._configuration.settings.broker_name
            return [
                _Goal(parse_address(masters[queues.broker_name]), queues.broker_name, queue_id)
                for queues in route.queue_datas
                if queues.perm & PERM_WRITE and queues.broker_name in masters and queues.broker_name != own
                for queue_id in range(queues.write_queue_nums)
            ]
        return []

    async def close(self) -> None:
        await self._pool.close()
