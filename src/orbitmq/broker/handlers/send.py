"""Taking messages. Java: SendMessageProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import names, retry_topics, statistics, timer_requests
from orbitmq.broker.compaction import check_key
from orbitmq.broker.message_types import check_batch_type, check_message_type
from orbitmq.broker.sending import Sending, attempt_after, packed_host, wants_to_wait, without_handle, without_wishes
from orbitmq.errors import HiddenRefusal, MessageError, RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.batch import BatchMember, decode_batch, encode_batch
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.record import decode_record
from orbitmq.message.sysflags import INNER_BATCH, MULTI_TAGS, NEED_UNWRAP, TRANSACTION_MASK
from orbitmq.protocol.bodies.topics import PERM_WRITE, SYS_FLAG_UNIT_SUB
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.send import SendBack, SendMessage, SendMessageV2

if TYPE_CHECKING:
    import random

    from orbitmq.broker.durability import Durability
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.receipts import Receipts
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.store import Store
    from orbitmq.storage.tables import TopicConfig
    from orbitmq.transport.connection import Connection

SendHeader = SendMessage | SendMessageV2

_FIRST_WITH_MAX_RECONSUME: Final = 121  # 3.4.9
_FIRST_RETRY_LEVEL: Final = 3
_MOST_INNER: Final = 32_767  # a queue entry counts them in 16 bits
_INNER_NUM: Final = f"{keys.INNER_NUM}\x01".encode()
_HANDLE: Final = f"{keys.POP_CHECK_POINT}\x01".encode()


async def send_message(
    sending: Sending,
    durability: Durability,
    receipts: Receipts,
    registration: Registration,
    header_type: type[SendMessage] | type[SendMessageV2],
    request: Command,
    connection: Connection,
) -> Command:
    """Append one message (or a batch) and answer once it is as durable as the broker promises, and its topic has a route."""
    header = request.read(header_type)
    try:
        sending.check_open()
        if not durability.is_immediate:
            durability.check_room()
        topic = sending.topic_for(header)
        queue_id = sending.queue_for(header, topic)
        if header.batch:
            receipt = await _send_batch(sending, durability, receipts, header, topic, queue_id, request, connection)
            await registration.until_told(header.topic)
            return receipt
        if not request.body:
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL, "the message has no body", hint="a body needs at least one byte"
            )
        target, properties = header.topic, header.properties
        if topic.attributes:
            check_message_type(topic, properties)
            check_key(topic, properties)
        if target.startswith(names.RETRY_PREFIX):
            target, queue_id, properties = sending.redirect_exhausted(header, request.version, properties)
            queue_id = max(queue_id, 0)
        appended, unique_key, recall_handle = sending.put(
            target,
            queue_id,
            request.body,
            properties,
            header.born_timestamp,
            packed_host(*connection.peer),
            header.flag,
            header.sys_flag | MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else header.sys_flag,
            header.reconsume_times,
        )
    except (RequestFailed, MessageError) as error:
        return receipts.refused(error)
    receipt = receipts.stored(appended.commit_log_offset, queue_id, appended.queue_offset, unique_key, recall_handle)
    if not durability.is_immediate and wants_to_wait(properties):
        receipt.code = await durability.wait(appended.end)
    if target in registration.untold:
        await registration.until_told(target)
    return receipt


async def _send_batch(
    sending: Sending,
    durability: Durability,
    receipts: Receipts,
    header: SendHeader,
    topic: TopicConfig,
    queue_id: int,
    request: Command,
    connection: Connection,
) -> Command:
    if header.topic.startswith(names.RETRY_PREFIX) or len(header.topic) > names.MAX_TOPIC_LENGTH:
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group or long topic {header.topic}"
        )
    most = sending.store.log.max_body_bytes
    if len(request.body) > most:  # as in Java; each member takes ten times its room here
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the batch has {len(request.body)} bytes; this broker takes up to {most}",
            hint="send fewer messages at once, or raise maxMessageSize",
        )
    outer = decode_properties(header.properties)
    if (
        outer.get(keys.DELAY, "0") not in ("", "0")
        or outer.get(keys.PREPARED, "").lower() == "true"
        or any(key in outer for key in timer_requests.REQUESTS)
    ):
        raise RequestFailed(ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional")
    members = decode_batch(request.body)
    if header.sys_flag & (TRANSACTION_MASK | INNER_BATCH) or any(map(_is_inner_batch, members)):
        raise RequestFailed(ResponseCode.MESSAGE_ILLEGAL, "the members of a batch are plain messages")
    is_whole = keys.UNIQUE_KEY in outer and sending.keeps_batches_whole(header.topic)
    if keys.INNER_NUM in outer or (is_whole and keys.INNER_BASE in outer):
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL,
            "how many messages a batch holds, and their numbers, are for the broker to say",
        )
    if topic.attributes:
        _check_members(topic, members, header.properties)
    body = request.body
    if any(_HANDLE in each.properties for each in members):
        members = [_without_handle(each) for each in members]
        body = encode_batch(members)
    if is_whole:
        receipt, end = _put_whole(sending, receipts, header, queue_id, len(members), body, connection)
    else:
        receipt, end = _put_members(sending, receipts, header, queue_id, members, outer, connection)
    if not durability.is_immediate and wants_to_wait(header.properties):
        receipt.code = await durability.wait(end)
    return receipt


def _check_members(topic: TopicConfig, members: list[BatchMember], outer: str) -> None:
    """What is asked of a message that is sent alone is asked of each. What the request says is said of all."""
    check_batch_type(topic, members)
    for each in members:
        check_key(topic, f"{each.properties.decode('utf-8', 'replace')}\x02{outer}")


def _is_inner_batch(member: BatchMember) -> bool:
    return _INNER_NUM in member.properties and keys.INNER_NUM in decode_properties(member.properties)


def _without_handle(member: BatchMember) -> BatchMember:
    properties = without_handle(member.properties.decode("utf-8", "replace")).encode()
    return BatchMember(member.body, properties, member.flag)


def _put_members(
    sending: Sending,
    receipts: Receipts,
    header: SendHeader,
    queue_id: int,
    members: list[BatchMember],
    outer: dict[str, str],
    connection: Connection,
) -> tuple[Command, int]:
    """Each member as a record of its own: the answer, and where the log ends behind them."""
    appended = sending.store.append_batch(
        header.topic,
        queue_id,
        members,
        sending.batch_properties(header.properties).encode(),
        header.born_timestamp,
        packed_host(*connection.peer),
        header.sys_flag,
        header.reconsume_times,
    )
    sending.count(header.topic, len(members), appended.end - appended.commit_log_offsets[0])
    unique_key = outer.get(keys.UNIQUE_KEY)
    receipt = receipts.stored_batch(appended.commit_log_offsets, queue_id, appended.queue_offset, unique_key)
    return receipt, appended.end


def _put_whole(
    sending: Sending,
    receipts: Receipts,
    header: SendHeader,
    queue_id: int,
    members: int,
    body: bytes,
    connection: Connection,
) -> tuple[Command, int]:
    """All members in one record, which consumers unwrap: what topics with queue.type=BatchCQ are for."""
    if not 0 < members <= _MOST_INNER:
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL, f"a batch of {members} messages", hint=f"from 1 to {_MOST_INNER} are taken"
        )
    appended, unique_key, _ = sending.put(
        header.topic,
        queue_id,
        body,
        f"{keys.INNER_NUM}\x01{members}\x02{header.properties}",
        header.born_timestamp,
        packed_host(*connection.peer),
        header.flag,
        header.sys_flag | NEED_UNWRAP | INNER_BATCH,
        header.reconsume_times,
    )
    sending.count(header.topic, members - 1, 0)
    offsets = [appended.commit_log_offset]
    receipt = receipts.stored_batch(offsets, queue_id, appended.queue_offset, unique_key, is_whole=True)
    return receipt, appended.end


async def send_back(
    sending: Sending,
    durability: Durability,
    topics: Topics,
    groups: Groups,
    store: Store,
    stats: Statistics,
    configuration: BrokerConfiguration,
    randomness: random.Random,
    compares_topic: bool,
    request: Command,
    connection: Connection,
) -> Command:
    """A consumer could not handle a message: keep a copy for later, or put it to the dead letters.

    Answered once the copy is safe: the consumer will move on, and then the copy is all there is. (Java does not wait.)

    Java: SendMessageProcessor.consumerSendMsgBack
    """
    header = request.read(SendBack)
    group = groups.require(header.group)
    if not configuration.settings.broker_permission & PERM_WRITE:
        raise RequestFailed(ResponseCode.NO_PERMISSION, "the broker sending message is forbidden")
    if group.retry_queue_nums <= 0:
        return ok()
    sys_flag = SYS_FLAG_UNIT_SUB if header.unit_mode else 0
    retry = topics.create_internal(names.retry_topic(header.group), group.retry_queue_nums, sys_flag=sys_flag)
    if not retry.perm & PERM_WRITE:
        raise RequestFailed(ResponseCode.NO_PERMISSION, f"the topic[{retry.topic_name}] sending message is forbidden")
    message = _given_back(store, topics, groups, header, compares_topic)
    # `put` adds these three again.
    own = (keys.REGION, keys.TRACE_ON, keys.CLUSTER)
    properties = {key: value for key, value in without_wishes(message.properties).items() if key not in own}
    properties.setdefault(keys.RETRY_TOPIC, message.topic)
    properties[keys.WAIT] = "false"
    properties.setdefault(keys.ORIGIN_MESSAGE_ID, message.offset_id)
    limit = group.retry_max_times
    if header.max_reconsume_times is not None and request.version >= _FIRST_WITH_MAX_RECONSUME:
        limit = header.max_reconsume_times
    if message.reconsume_times >= limit or header.delay_level < 0:
        target, queue_id = topics.create_internal(names.dead_letter_topic(header.group), 1).topic_name, 0
        properties[keys.DELAY] = "0"
        stats.counter(statistics.DLQ_PUT_NUMS, f"{message.topic}@{header.group}").add(1)
    else:
        target, queue_id = retry.topic_name, randomness.randrange(max(1, retry.write_queue_nums))
        level = header.delay_level or _FIRST_RETRY_LEVEL + message.reconsume_times
        properties[keys.DELAY] = str(level)
        properties.pop(keys.FIRST_POP_TIME, None)  # said of what comes back from a lease, which this does not
    appended, _, _ = sending.put(
        target,
        queue_id,
        message.body,
        encode_properties(properties).decode(),
        message.born_at_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
        attempt_after(message.reconsume_times),
    )
    await topics.settle()  # after a kill nobody would know of a topic that was made for it, and of what lies in it
    if not durability.is_immediate:
        await durability.keep_promise(appended.end)
    stats.counter(statistics.SEND_BACK_NUMS, f"{message.topic}@{header.group}").add(1)
    return ok()


def _given_back(store: Store, topics: Topics, groups: Groups, header: SendBack, compares_topic: bool) -> StoredMessage:
    """With access control it has to be a message that the group may have got: a copy is a way to read it."""
    record = store.message_at(header.offset)
    if record is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    message = decode_record(record)
    if compares_topic and not _may_be_of(message, header, topics, groups):
        raise HiddenRefusal(
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {header.offset}",
            hint="is originTopic its topic?",
        )
    return message


def _may_be_of(message: StoredMessage, header: SendBack, topics: Topics, groups: Groups) -> bool:
    """`originTopic` is what the sender was allowed to read; of a message that was sent back before, it is that of the first time."""
    topic, group, origin = message.topic, header.group, header.origin_topic or ""
    newer, older = names.lease_retry_topics(group, origin)
    if topic == older:
        return retry_topics.own_test(groups, topics, group, origin)(message.properties)
    return topic in (origin, names.retry_topic(group), newer)
