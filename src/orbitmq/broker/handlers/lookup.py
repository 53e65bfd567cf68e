"""Finding messages: by key, by where they are stored. Java: QueryMessageProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker import names
from orbitmq.errors import HiddenRefusal, RequestFailed
from orbitmq.message.record import decode_entry
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.admin import MessagesFound, QueryMessage, ViewMessage
from orbitmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from orbitmq.access.gate import Door
    from orbitmq.access.needs import Need
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection


async def query_message(
    store: Store, configuration: BrokerConfiguration, request: Command, connection: Connection
) -> Command:
    """Records whose key may be the one asked for; the asker compares, because only hashes are kept.

    Of its own topic only: a key can be made up whose hash is that of another topic's message.
    """
    header = request.read(QueryMessage)
    settings = configuration.settings
    wanted = settings.default_query_max_num if header.unique_key else header.max_num
    limit = min(wanted, settings.max_msgs_num_batch)
    found = store.find_by_key(header.topic, header.key, limit, header.begin_timestamp, header.end_timestamp)
    records = [record for record in found.records if decode_entry(record, 0, 0).topic == header.topic]
    if not records and not found.is_whole:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            f"too many messages have this key, or its hash, to find those of that time: {header.key[:300]!r}",
            hint="ask for a later time, or give messages keys of their own",
        )
    if not records:
        nothing = MessagesFound(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        return answer(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", nothing)
    response = ok(
        MessagesFound(
            index_last_update_timestamp=found.last_stored_at_ms, index_last_update_phyoffset=found.last_offset
        )
    )
    response.parts = records
    return response


async def view_message(
    store: Store, gate: Door | None, need_of_all: Need, request: Command, connection: Connection
) -> Command:
    """With access control the topic has to be the message's: leave to read one is no leave to read others. Without a topic, what waits
    for its time or its decision takes `need_of_all`.

    As for a pull, what a power cut can still take is not there yet: an empty slave asks for its first record by this. Slaves ask
    for records of deleted topics as well, so no queue has to lead to what is shown.
    """
    header = request.read(ViewMessage)
    offset = header.offset
    record = store.record_at(offset)
    if record is not None and offset + len(record) > store.confirmed_offset:
        record = None
    topic = decode_entry(record, 0, offset).topic if record is not None and gate is not None else ""
    is_anothers = gate is not None and header.topic and topic != header.topic
    if record is None or is_anothers:
        failure = HiddenRefusal if record is not None else RequestFailed
        raise failure(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    if gate is not None and not header.topic and names.is_waiting_place(topic):
        who = request.fields.get(ACCESS_KEY, "")
        if not gate.allows(request.code, who, need_of_all, connection.peer.host):
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"User:{who} may not read messages in {topic}")
    response = ok()
    response.parts = (record,)
    return response
