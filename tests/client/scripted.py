"""A small cluster that does as it is told: real sockets and real frames, memory for a store, faults on request.

It holds what it is sent, serves pulls (waiting for messages when asked to), keeps offsets, members and locks, and records every
request, so that a test can say both what a client must do and what the cluster does to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from orbitmq.message import StoredMessage
from orbitmq.message.batch import decode_batch
from orbitmq.message.hosts import pack_host
from orbitmq.message.ids import offset_message_id, parse_offset_message_id
from orbitmq.message.properties import RETRY_TOPIC, decode_properties, encode_properties
from orbitmq.message.record import encode_stored
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumerIds,
    Heartbeat,
    LockQueues,
    QueueKey,
    QueuesLocked,
)
from orbitmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, ok, request
from orbitmq.protocol.headers.groups import ConsumerGroup, HeartbeatTaken, UnregisterClient
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.protocol.headers.offsets import (
    OffsetFound,
    QueryConsumerOffset,
    QueueName,
    SearchOffset,
    UpdateConsumerOffset,
)
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage, PullResult
from orbitmq.protocol.headers.send import SendBack, SendMessageV2, SendReceipt
from orbitmq.protocol.headers.transactions import EndTransaction
from orbitmq.transport.address import Address
from orbitmq.transport.connection import Connection
from orbitmq.transport.server import Server

_NOWHERE = Address("", 0)

Fault = Callable[[Command, Connection], Awaitable[Command | None]]


@dataclass
class ScriptedBroker:
    """One master broker."""

    name: str
    address: Address = _NOWHERE
    version: int = versions.OURS
    requests: list[Command] = field(default_factory=list)
    queues: dict[tuple[str, int], list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    members: dict[str, dict[str, Connection]] = field(default_factory=lambda: defaultdict(dict))
    producers: dict[str, Connection] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    locks: dict[tuple[str, str, int], str] = field(default_factory=dict)
    faults: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    min_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    _log: list[StoredMessage] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, code: int) -> list[Command]:
        return [one for one in self.requests if one.code == code]

    def inject(self, code: int, fault: Fault, times: int = 1) -> None:
        """The next `times` requests with this code are answered by `fault`."""
        self.faults[code] += [fault] * times

    def routes(self) -> dict[int, Callable[[Command, Connection], Awaitable[Command | None]]]:
        handlers = {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send_batch,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_ids,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.CHECK_CLIENT_CONFIG: self._fine,
            RequestCode.END_TRANSACTION: self._end_transaction,
        }
        return {code: self._recorded(handler) for code, handler in handlers.items()}

    def put(self, topic: str, queue_id: int, body: bytes, **properties: str) -> StoredMessage:
        """As if somebody had sent it."""
        queue = self.queues[topic, queue_id]
        raw = encode_properties(properties)
        message = StoredMessage(
            topic=topic, queue_id=queue_id, queue_offset=len(queue), body=body, properties=properties,
            raw_properties=raw, flag=0, sys_flag=0, born_at_ms=1, born_host=pack_host("127.0.0.1", 1),
            stored_at_ms=1_700_000_000_000 + len(queue), store_host=pack_host("127.0.0.1", 2), reconsume_times=0,
            prepared_transaction_offset=0, commit_log_offset=len(self._log), size=0, body_crc=0,
        )  # fmt: skip
        queue.append(message)
        self._log.append(message)
        self._arrived.set()
        self._arrived = asyncio.Event()
        return message

    def notify_members(self, group: str) -> None:
        for connection in self.members[group].values():
            header = ConsumerGroup(consumer_group=group)
            connection.notify(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))

    def _recorded(self, handler: Fault) -> Fault:
        async def handle(command: Command, connection: Connection) -> Command | None:
            self.requests.append(command)
            faults = self.faults[command.code]
            return await (faults.pop(0) if faults else handler)(command, connection)

        return handle

    async def _send(self, command: Command, connection: Connection) -> Command:
        header = command.read(SendMessageV2)
        message = self.put(header.topic, header.queue_id, command.body, **decode_properties(header.properties))
        message.sys_flag, message.flag = header.sys_flag, header.flag
        message.reconsume_times = header.reconsume_times
        return ok(_receipt([message]))

    async def _send_batch(self, command: Command, connection: Connection) -> Command:
        header = command.read(SendMessageV2)
        assert header.batch
        messages = [
            self.put(header.topic, header.queue_id, member.body, **decode_properties(member.properties))
            for member in decode_batch(command.body)
        ]
        return ok(_receipt(messages))

    async def _pull(self, command: Command, connection: Connection) -> Command:
        header = command.read(PullMessage)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        key = (header.topic, header.queue_id)
        queue, first, at = self.queues[key], self.min_offsets.get(key, 0), header.queue_offset
        if not first <= at <= len(queue):
            code, following = ResponseCode.PULL_OFFSET_MOVED, first if at < first else len(queue)
            return answer(code, header=_pull_result(following, first, len(queue)))
        waits = header.sys_flag & PULL_SUSPEND and header.suspend_timeout_millis
        while at >= len(queue) and waits and not connection.closed:
            arrived = self._arrived
            try:
                await asyncio.wait_for(arrived.wait(), header.suspend_timeout_millis / 1000)
            except TimeoutError:
                break
        found = queue[at : at + header.max_msg_nums]
        if not found:
            return answer(ResponseCode.PULL_NOT_FOUND, header=_pull_result(at, first, len(queue)))
        body = b"".join(encode_stored(message) for message in found)
        return answer(ResponseCode.SUCCESS, header=_pull_result(at + len(found), first, len(queue)), body=body)

    async def _heartbeat(self, command: Command, connection: Connection) -> Command:
        body = Heartbeat.from_json(command.body)
        self.heartbeats.append(body)
        self.producers.update(dict.fromkeys((producer.group_name for producer in body.producer_data_set), connection))
        for consumer in body.consumer_data_set:
            is_new = body.client_id not in self.members[consumer.group_name]
            self.members[consumer.group_name][body.client_id] = connection
            if is_new:
                self.notify_members(consumer.group_name)
        taken = ok(HeartbeatTaken())
        taken.version = self.version
        return taken

    async def _unregister(self, command: Command, connection: Connection) -> Command:
        header = command.read(UnregisterClient)
        if header.consumer_group:
            self.members[header.consumer_group].pop(header.client_id, None)
            self.notify_members(header.consumer_group)
        return ok()

    async def _consumer_ids(self, command: Command, connection: Connection) -> Command:
        group = command.read(ConsumerGroup).consumer_group
        if not self.members[group]:
            return answer(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return ok(body=ConsumerIds(consumer_id_list=list(self.members[group])).to_json())

    async def _connections(self, command: Command, connection: Connection) -> Command:
        group = command.read(ConsumerGroup).consumer_group
        latest = [one for beat in self.heartbeats for one in beat.consumer_data_set if one.group_name == group][-1]
        table = {one.topic: one for one in latest.subscription_data_set}
        return ok(body=ConsumerConnection(subscription_table=table).to_json())

    async def _query_offset(self, command: Command, connection: Connection) -> Command:
        header = command.read(QueryConsumerOffset)
        found = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if found is None:
            return answer(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return ok(OffsetFound(offset=found))

    async def _update_offset(self, command: Command, connection: Connection) -> Command:
        header = command.read(UpdateConsumerOffset)
        assert header.queue_id is not None
        assert header.commit_offset is not None
        group, topic = header.consumer_group, header.topic
        if not any(key[:2] == (group, topic) for key in self.offsets):
            # As Apache's: whoever finds no table makes one, and of those who do so at once the last one's stays.
            await asyncio.sleep(0.001)
            for key in [key for key in self.offsets if key[:2] == (group, topic)]:
                del self.offsets[key]
        self.offsets[group, topic, header.queue_id] = header.commit_offset
        return ok()

    async def _max_offset(self, command: Command, connection: Connection) -> Command:
        header = command.read(QueueName)
        return ok(OffsetFound(offset=len(self.queues[header.topic, header.queue_id])))

    async def _min_offset(self, command: Command, connection: Connection) -> Command:
        header = command.read(QueueName)
        return ok(OffsetFound(offset=self.min_offsets.get((header.topic, header.queue_id), 0)))

    async def _search(self, command: Command, connection: Connection) -> Command:
        header = command.read(SearchOffset)
        queue = self.queues[header.topic, header.queue_id]
        later = [message.queue_offset for message in queue if message.stored_at_ms >= header.timestamp]
        return ok(OffsetFound(offset=later[0] if later else len(queue)))

    async def _lock(self, command: Command, connection: Connection) -> Command:
        body = LockQueues.from_json(command.body)
        locked: list[QueueKey] = []
        for queue in body.mq_set:
            owner = self.locks.setdefault((body.consumer_group, queue.topic, queue.queue_id), body.client_id)
            if owner == body.client_id:
                locked.append(queue)
        return ok(body=QueuesLocked(lock_ok_mq_set=locked).to_json())

    async def _unlock(self, command: Command, connection: Connection) -> Command:
        body = LockQueues.from_json(command.body)
        for queue in body.mq_set:
            key = (body.consumer_group, queue.topic, queue.queue_id)
            if self.locks.get(key) == body.client_id:
                del self.locks[key]
        return ok()

    async def _send_back(self, command: Command, connection: Connection) -> Command:
        """Delivered again at once: delays are the real broker's business."""
        header = command.read(SendBack)
        original = self._log[header.offset]
        properties = {**original.properties, RETRY_TOPIC: original.properties.get(RETRY_TOPIC, original.topic)}
        again = self.put(f"%RETRY%{header.group}", 0, original.body, **properties)
        again.reconsume_times = original.reconsume_times + 1
        return ok()

    async def _end_transaction(self, command: Command, connection: Connection) -> Command | None:
        return ok() if command.read(EndTransaction).commit_or_rollback else None

    async def _fine(self, command: Command, connection: Connection) -> Command:
        return ok()


@dataclass
class ScriptedCluster:
    """A name server and its brokers."""

    brokers: list[ScriptedBroker]
    topics: dict[str, int]
    """Topic -> queues on each broker."""
    name_server: Address = _NOWHERE
    route_requests: int = 0
    servers: dict[str, Server] = field(default_factory=dict)
    offline: set[str] = field(default_factory=set)

    @property
    def broker(self) -> ScriptedBroker:
        return self.brokers[0]

    @property
    def address(self) -> str:
        return str(self.name_server)

    def name_server_routes(self) -> dict[int, Fault]:
        return {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}

    async def start_name_server(self, port: int = 0) -> None:
        server = Server(self.name_server_routes())  # type: ignore[arg-type]
        self.name_server = await server.start("127.0.0.1", port)
        self.servers["name server"] = server

    async def start_broker(self, broker: ScriptedBroker, port: int = 0) -> None:
        server = Server(broker.routes())  # type: ignore[arg-type]
        broker.address = await server.start("127.0.0.1", port)
        self.servers[broker.name] = server

    async def stop(self, name: str) -> None:
        server = self.servers.pop(name)
        for connection in list(server.connections):
            connection.abort()
        await server.stop(grace_seconds=0.01)

    async def _route(self, command: Command, connection: Connection) -> Command:
        self.route_requests += 1
        topic = command.read(GetRoute).topic
        queues = self.topics.get(topic)
        if topic.startswith("%RETRY%"):
            queues = 1
        if queues is None:
            return answer(ResponseCode.TOPIC_NOT_EXIST, f"no route of {topic}")
        online = [broker for broker in self.brokers if broker.name not in self.offline]
        route = TopicRoute(
            broker_datas=[
                BrokerData(cluster="c", broker_name=broker.name, broker_addrs={0: str(broker.address)})
                for broker in online
            ],
            queue_datas=[
                QueueData(broker_name=broker.name, read_queue_nums=queues, write_queue_nums=queues) for broker in online
            ],
        )
        return ok(body=route.to_json())


@contextlib.asynccontextmanager
async def scripted_cluster(*, brokers: int = 1, topics: dict[str, int] | None = None) -> AsyncIterator[ScriptedCluster]:
    names = [f"broker-{chr(ord('a') + number)}" for number in range(brokers)]
    cluster = ScriptedCluster([ScriptedBroker(name) for name in names], topics if topics is not None else {"T": 2})
    await cluster.start_name_server()
    for broker in cluster.brokers:
        await cluster.start_broker(broker)
    try:
        yield cluster
    finally:
        for name in list(cluster.servers):
            await cluster.stop(name)


async def eventually(probe: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until `probe` is true."""
    async with asyncio.timeout(seconds):
        while not probe():
            await asyncio.sleep(0.005)


def refuse(code: int, remark: str = "scripted") -> Fault:
    async def fault(command: Command, connection: Connection) -> Command:
        return answer(code, remark)

    return fault


async def never_answer(command: Command, connection: Connection) -> Command | None:
    return None


async def hang_up(command: Command, connection: Connection) -> Command | None:
    connection.abort()
    return None


def _receipt(messages: list[StoredMessage]) -> SendReceipt:
    ids = [offset_message_id(message.store_host, message.commit_log_offset) for message in messages]
    assert all(parse_offset_message_id(one) for one in ids)
    return SendReceipt(
        msg_id=",".join(ids), queue_id=messages[0].queue_id, queue_offset=messages[0].queue_offset,
        region="DefaultRegion", trace_on="true",
    )  # fmt: skip


def _pull_result(following: int, first: int, end: int) -> PullResult:
    return PullResult(suggest_which_broker_id=0, next_begin_offset=following, min_offset=first, max_offset=end)
