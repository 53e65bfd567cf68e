"""Who is connected, and questions that only a connected client can answer. Java: AdminBrokerProcessor, Broker2Client"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.errors import CallTimeout, HiddenRefusal, OrbitError, RequestFailed, TransportError
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.record import decode_entry
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.groups import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from orbitmq.protocol.bodies.offsets import ConsumerStatusBody
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.admin import ProducerGroup
from orbitmq.protocol.headers.groups import ConsumeDirectly, ConsumerGroup, ConsumerRunningInfo, ConsumerStatus
from orbitmq.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

if TYPE_CHECKING:
    from orbitmq.broker.clients import Client, Clients
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 10.0
_NOT_FOR_CLIENTS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
_STATUS_SECONDS: Final = 5.0


async def consumer_connections(clients: Clients, request: Command, connection: Connection) -> Command:
    group = request.read(ConsumerGroup).consumer_group
    members = clients.consumers(group)
    if members is None:
        raise RequestFailed(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group[:300]}] not online")
    found = ConsumerConnection(
        connection_set=[_connection(client) for client in members.clients.values()],
        subscription_table=members.subscriptions,
        consume_type=members.consume_type,
        message_model=members.message_model,
        consume_from_where=members.consume_from_where,
        differing_clients=members.differing_members() or None,
    )
    return ok(body=found.to_json())


async def producer_connections(clients: Clients, request: Command, connection: Connection) -> Command:
    group = request.read(ProducerGroup).producer_group
    producers = clients.producers(group)
    if not producers:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:300]}] not exist")
    return ok(body=ProducerConnection(connection_set=[_connection(client) for client in producers]).to_json())


async def all_producers(clients: Clients, request: Command, connection: Connection) -> Command:
    table = {group: [_producer(client) for client in members] for group, members in clients.producer_groups().items()}
    return ok(body=ProducerTable(data=table).to_json())


async def running_info(clients: Clients, request: Command, connection: Connection) -> Command:
    header = request.read(ConsumerRunningInfo)
    return await _forward(clients, header.consumer_group, header.client_id, request)


async def consume_directly(
    clients: Clients,
    topics: Topics,
    groups: Groups,
    store: Store,
    configuration: BrokerConfiguration,
    compares_topic: bool,
    request: Command,
    connection: Connection,
) -> Command:
    """Hand one message to one consumer, past its queue. With access control the topic, if one is named, has to be the message's."""
    header = request.read(ConsumeDirectly)
    _, offset = parse_offset_message_id(header.msg_id or "")
    record = store.message_at(offset)
    topics_of_group = (header.topic, names.retry_topic(header.consumer_group))
    if record is None or (
        compares_topic and header.topic and decode_entry(record, 0, offset).topic not in topics_of_group
    ):
        failure = HiddenRefusal if record is not None else RequestFailed
        raise failure(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    topic, group = topics.get(header.topic or ""), groups.get(header.consumer_group)
    request.add_fields(brokerName=configuration.settings.broker_name)
    if topic is not None:
        request.add_fields(topicSysFlag=str(topic.topic_sys_flag))
    if group is not None:
        request.add_fields(groupSysFlag=str(group.group_sys_flag))
    request.body = bytes(record)
    return await _forward(clients, header.consumer_group, header.client_id or "", request)


async def consumer_status(clients: Clients, request: Command, connection: Connection) -> Command:
    """Where each member of a group is in a topic, by its own account."""
    header = request.read(ConsumerStatus)
    members = clients.consumers(header.group)
    if members is None:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group[:300]}]"
        )
    asked = [c for c in members.clients.values() if not header.client_addr or header.client_addr == c.client_id]
    for client in asked:
        if client.version < versions.FIRST_WITH_RESET_OFFSET:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={versions.name(client.version)}",
            )
    answers = await asyncio.gather(*(_status(client, header.topic, header.group) for client in asked))
    table = {client.client_id: answer.own for client, answer in zip(asked, answers, strict=True) if answer is not None}
    return ok(body=ConsumerStatusBody(by_client=table).to_json())


async def _status(client: Client, topic: str, group: str) -> ConsumerStatusBody | None:
    """None if it did not say: the others' answers are worth having all the same."""
    question = new_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatus(topic=topic, group=group))
    try:
        answer = await client.connection.call(question, _STATUS_SECONDS)
        if answer.code == ResponseCode.SUCCESS and answer.body:
            return ConsumerStatusBody.from_json(answer.body)
    except OrbitError as error:
        logger.warning("client %s did not say where it is in %s: %s", client.client_id, topic, error)
    return None


async def _forward(clients: Clients, group: str, client_id: str, request: Command) -> Command:
    """Ask the client what the asker wants to know, and answer with what it says.

    Without the asker's signature: it signs values, not the names of fields, so a client could make other requests of it.
    """
    members = clients.consumers(group)
    client = members.find(client_id) if members is not None else None
    if client is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:300]}> <{client_id[:300]}> not online")
    if client.version < versions.FIRST_WITH_RUNNING_INFO:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client_id}> Version <{versions.name(client.version)}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT",
        )
    fields = {name: text for name, text in request.fields.items() if name not in _NOT_FOR_CLIENTS}
    question = Command(request.code, fields=fields, body=request.body)
    try:
        answer = await client.connection.call(question, _ANSWER_SECONDS)
    except CallTimeout as error:
        raise RequestFailed(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
        ) from None
    except TransportError as error:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        ) from None
    return answer


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(
        client_id=client.client_id,
        client_addr=str(client.connection.peer),
        language=client.language,
        version=client.version,
    )


def _producer(client: Client) -> ProducerInfo:
    return ProducerInfo(
        client_id=client.client_id,
        remote_ip=f"/{client.connection.peer}",
        language=client.language,
        version=client.version,
        last_update_timestamp=client.last_seen_ms,
    )
