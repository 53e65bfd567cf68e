"""Messages that a slave in its master's place has to store, and cannot: they are sent to another master of the cluster.

Messages of a topic that nobody took wait for a second. One that every master with its topic calls illegal is given up, and said so:
all that is due later would wait behind it.

Java: EscapeBridge
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names
from orbitmq.errors import OrbitError
from orbitmq.message import properties as keys
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.sysflags import TRANSACTION_MASK, TRANSACTION_PREPARED
from orbitmq.protocol.bodies.route import ClusterInfo, TopicRoute
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
    from orbitmq.protocol.command import Command
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_SECONDS: Final = 3.0
_AFTER_REFUSAL_SECONDS: Final = 1.0
_NO_DELAY: Final = "0"  # makes it a delayed message for topics that take no others
_MASTER_ID: Final = 0
_DEFAULT_QUEUES: Final = 4
# What a message was told on its way through this broker, or would make the other one delay it again.
_OF_THIS_BROKER: Final = (
    keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.TRANSACTION_ID, keys.TIMER_OUT_MS, keys.CLUSTER, keys.REGION, keys.TRACE_ON,
)  # fmt: skip
_REQUESTS: Final = (
    keys.DELAY, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS, keys.PREPARED,
)  # fmt: skip


# With the latter two it is stored there, if not on that master's slaves yet; sent again, it would be there twice.
_TAKEN: Final = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
_WAITED_IN: Final = (names.DELAY_TOPIC, names.TIMER_TOPIC)


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
        self._refused_until: dict[str, float] = {}  # the loop's time
        self._turn = 0
        self._failure = ""
        self._said = ("", "")  # not each second anew

    def forget_routes(self) -> None:
        self._goals.clear()
        self._refused_until.clear()

    async def deliver(self, topic: str, message: RawRecord, **changed: str) -> bool:
        """A message whose moment has come. False: nobody took it, try again."""
        properties = decode_properties(message.properties)
        for key in (*_OF_THIS_BROKER, *_REQUESTS):
            properties.pop(key, None)
        properties.update(changed)
        sys_flag = message.sys_flag & ~TRANSACTION_MASK
        code = await self._send(topic, message, properties, sys_flag)
        if code == ResponseCode.MESSAGE_ILLEGAL and message.topic in _WAITED_IN:
            code = await self._send(topic, message, {keys.DELAY: _NO_DELAY, **properties}, sys_flag)
        if code == ResponseCode.MESSAGE_ILLEGAL:
            logger.error(
                "gave up a message of %s, at %d in the log: %s", topic, message.commit_log_offset, self._failure
            )
        return code in _TAKEN or code == ResponseCode.MESSAGE_ILLEGAL

    async def begin_transaction(self, message: RawRecord) -> bool:
        """A half message: the other broker keeps it as one, and asks its producer."""
        properties = decode_properties(message.properties)
        topic = properties.get(keys.REAL_TOPIC, "")
        for key in _OF_THIS_BROKER:
            properties.pop(key, None)
        properties[keys.PREPARED] = "true"
        sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
        code = await self._send(topic, message, properties, sys_flag)
        if code == ResponseCode.MESSAGE_ILLEGAL:  # its producer may have promised it: the own master asks
            self._wait(topic, self._failure)
        return code in _TAKEN

    async def _send(self, topic: str, message: RawRecord, properties: dict[str, str], sys_flag: int) -> int | None:
        """What a master says to it: MESSAGE_ILLEGAL if all say so, None if none can be asked now."""
        now = asyncio.get_running_loop().time()
        if now < self._refused_until.get(topic, now):
            return None
        code: int | None = None
        try:
            for goal in await self._one_of_each_master(topic):
                answer = await self._pool.call(
                    goal.master, self._request(topic, goal, message, properties, sys_flag), _SECONDS
                )
                code = answer.code
                failure = f"{goal.broker_name} says {answer.code}: {answer.remark}" if answer.code else ""
                if code != ResponseCode.MESSAGE_ILLEGAL:
                    break
        except OrbitError as error:
            code, failure = None, str(error)
        if code not in _TAKEN and code != ResponseCode.MESSAGE_ILLEGAL:
            self._wait(topic, failure)
        self._failure = failure
        return code

    def _wait(self, topic: str, failure: str) -> None:
        self._goals.pop(topic, None)
        self._refused_until[topic] = asyncio.get_running_loop().time() + _AFTER_REFUSAL_SECONDS
        if (topic, failure) != self._said:
            logger.warning("messages of %s wait, no other master takes them: %s", topic, failure)
        self._said = (topic, failure)

    def _request(
        self, topic: str, goal: _Goal, message: RawRecord, properties: dict[str, str], sys_flag: int
    ) -> Command:
        settings = self._configuration.settings
        own_group = f"InnerProducerGroup_{settings.broker_name}_{settings.broker_id}"
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
        return new_request(RequestCode.SEND_MESSAGE_V2, header, bytes(message.body))

    async def _one_of_each_master(self, topic: str) -> list[_Goal]:
        """Queues, each of another master; the first is another one each time."""
        goals = self._goals.get(topic)
        if goals is None:
            goals = await self._look_up(topic) or await self._look_up(names.AUTO_CREATE_TOPIC)
            if not goals and topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                goals = await self._masters()
            if not goals:
                raise OrbitError("there is no other master in this cluster that has the topic, or would create it")
            self._goals[topic] = goals
        self._turn += 1
        first = self._turn % len(goals)
        of_masters: dict[str, _Goal] = {}
        for goal in goals[first:] + goals[:first]:
            of_masters.setdefault(goal.broker_name, goal)
        return list(of_masters.values())

    async def _masters(self) -> list[_Goal]:
        """All others of the cluster: they make topics for what is retried whether or not they make others."""
        for server in self._name_servers.addresses:
            try:
                answer = await self._pool.call(server, new_request(RequestCode.GET_BROKER_CLUSTER_INFO), _SECONDS)
            except OrbitError:
                continue  # the next one may answer
            if answer.code != ResponseCode.SUCCESS:
                return []
            world, settings = ClusterInfo.from_json(answer.body), self._configuration.settings
            brokers = [
                world.broker_addr_table[name]
                for name in world.cluster_addr_table.get(settings.broker_cluster_name, [])
                if name != settings.broker_name and name in world.broker_addr_table
            ]
            return [
                _Goal(parse_address(broker.broker_addrs[_MASTER_ID]), broker.broker_name, 0)
                for broker in brokers
                if _MASTER_ID in broker.broker_addrs
            ]
        return []

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
