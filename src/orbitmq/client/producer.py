"""Sending messages. Every `send` is awaited by its caller, yet all that is sent at once travels in one write.

    send() ─> check, compress, give an id ─> delivery (queue, broker, attempts) ─> Receipt

Java: DefaultMQProducer, DefaultMQProducerImpl
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from orbitmq.client import instance as instances
from orbitmq.client.accumulator import Accumulator
from orbitmq.client.batches import MEMBER_OVERHEAD, Batch, alike, batch_items, by_group, split
from orbitmq.client.delays import check_delay, check_level, level_property, timer_property
from orbitmq.client.delivery import ANYWHERE, Delivered, Delivery, Destination, destination
from orbitmq.client.hooks import Sending
from orbitmq.client.names import TEMPLATE_TOPIC, check_group, check_topic
from orbitmq.client.namespaces import wrapped
from orbitmq.client.outgoing import (
    Compression,
    check_body,
    check_tag,
    check_user_properties,
    keys_text,
    properties_text,
)
from orbitmq.client.recalls import take_back
from orbitmq.client.receipts import STATUS_BY_CODE, Receipt, SendStatus, batch_receipts_of, receipt_of
from orbitmq.client.requests import no_reply, reply_to
from orbitmq.client.stats import ProducerStats
from orbitmq.errors import AlreadyClosed, MessageError, OrbitError
from orbitmq.message import Message, QueueRef
from orbitmq.message import properties as names
from orbitmq.message.sysflags import TRANSACTION_PREPARED
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.tasks import Once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.config import ClientConfig
    from orbitmq.client.hooks import SendHook
    from orbitmq.client.instance import Instance
    from orbitmq.client.producer_options import ProducerOptions
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.transport.address import Address

Keys = str | list[str] | tuple[str, ...]

_IDS_AT_ONCE: Final = 10_000
_NO_KEYS: Final = ((), "", None)
_ADDED_BYTES: Final = 64  # to the properties of a message: its id, and the name of its namespace's


class Producer:
    """Sends messages as one producer group. Made by `Client.producer`; safe to use from many tasks at once."""

    def __init__(self, config: ClientConfig, group: str, options: ProducerOptions) -> None:
        check_group(group)
        self.group = wrapped(config.namespace, group)
        self.stats = ProducerStats()
        self._config = config
        self._options = options
        self._compression = Compression(options.compression, options.compress_over_bytes, options.compression_level)
        self._hooks: list[SendHook] = list(options.hooks)
        self._instance: Instance | None = None
        self._delivery: Delivery | None = None
        self._accumulator: Accumulator | None = None
        self._checked_topics: set[str] = set()
        self._ending = Once()
        self._asks = False  # whether it has sent a request
        self.closed = False

    # ---- life

    async def start(self) -> Self:
        """Join the client's connections. Nothing is sent yet: a cluster that is down shows at the first send."""
        if self.closed:
            raise AlreadyClosed(f"producer {self.group!r} is closed", hint="make a new one")
        if self._instance is None:
            self._instance = instances.acquire(self._config)
            self._instance.add_producer(self.group)
            self._delivery = Delivery(self._instance.cluster, self._options, self.stats)
            if self._options.accumulate:
                options = self._options
                self._accumulator = Accumulator(
                    self._send_accumulated,
                    self._batched_bytes,
                    options.accumulate_bytes,
                    options.max_batch_messages,
                    options.max_message_bytes,
                    options.accumulate_seconds,
                )
        return self

    async def close(self) -> None:
        """Send what the accumulator still holds, wait for what is on its way, leave the group.

        Who is cancelled meanwhile leaves it going on; a second call waits for its end.
        """
        self.closed = True
        await self._ending.run(self._end, f"closing producer {self.group}")

    async def _end(self) -> None:
        try:
            if self._accumulator is not None:
                await self._accumulator.close()
            if self._delivery is not None:
                await self._delivery.until_idle()
        finally:
            instance, self._instance, self._delivery = self._instance, None, None
            if instance is not None:
                instance.requests.leave(self)
                try:
                    await instance.remove_producer(self.group)
                finally:
                    await instances.release(instance)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def add_hook(self, hook: SendHook) -> None:
        """From now on `hook` sees every message."""
        self._hooks.append(hook)

    # ---- sending

    async def send(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        message_group: str | None = None,
        queue: QueueRef | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        wait_stored: bool = True,
        flag: int = 0,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message and wait until its broker has it.

        Messages with the same `order_key` go to the same queue, as Java's clients choose it; `message_group` is the same for
        FIFO topics of RocketMQ 5, as its proxy chooses it. Bytes and text are sent as they are, other values by the
        producer's codec. With `delay` or `deliver_at` the broker keeps it until then, to the second and up to three days; a
        4.x broker has some delay levels only, and any other delay is a MessageError. `timeout` spans all attempts, in seconds.
        """
        message = self.message(topic, body, tag=tag, keys=keys, properties=properties, flag=flag)
        _give_wishes(message, delay_level, message_group)
        if not wait_stored:
            message.properties[names.WAIT] = "false"
        return await self.send_message(
            message, order_key=order_key, queue=queue, delay=delay, deliver_at=deliver_at, timeout=timeout
        )

    def message(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Message:
        """A message for `send_message` or `send_batch`, its body encoded by the producer's codec and its properties checked."""
        data = body if type(body) is bytes else self._options.codec.encode(body)
        if properties:
            check_user_properties(properties)
        if tag.__class__ is not str:
            check_tag(tag)
        joined = keys_text(keys) if keys not in _NO_KEYS else ""
        return Message(topic, data, tag=tag, keys=joined, properties=properties, flag=flag)

    async def send_message(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: QueueRef | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `send`, of a message that is built already."""
        delivery = self._running()
        if not isinstance(message, Message):
            raise MessageError(f"{message!r:.50} is no message", hint="send(topic, body) makes one")
        if message.topic.__class__ is not str or message.topic not in self._checked_topics:
            check_topic(message.topic)
            self._checked_topics.add(message.topic)
        check_body(message.body, self._options.max_message_bytes)
        message_group = message.properties.get(names.SHARDING_KEY)
        to = ANYWHERE
        if queue is not None or order_key is not None or message_group is not None:
            to = destination(message.topic, queue, order_key, message_group)
        is_delayed = delay is not None or deliver_at is not None
        if self._accumulator is not None and not is_delayed and not to.is_fixed and self._accumulator.suits(message):
            return await self._accumulator.add(message, self._timeout(timeout))
        sending = self._prepared(message)
        seconds = self._timeout(timeout)
        if is_delayed:
            seconds = await self._delay(sending, delay, deliver_at, seconds)
        if not self._hooks:
            if self._compression.applies_to(sending.body):
                header, body = await self._encoded(sending, message.flag)
            else:
                header, body = self._header(sending.topic, sending.properties, 0, message.flag), sending.body
            delivered = await delivery.deliver(RequestCode.SEND_MESSAGE_V2, header, body, to, seconds)
            return self._receipt(delivered, message.topic, sending)
        with self._watched([sending]):
            header, body = await self._encoded(sending, message.flag)
            delivered = await delivery.deliver(RequestCode.SEND_MESSAGE_V2, header, body, to, seconds)
            receipt = self._receipt(delivered, message.topic, sending)
        self._tell([sending], [receipt], delivered.address)
        return receipt

    async def send_batch(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        queue: QueueRef | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Send many messages in few requests; one receipt each, in their order.

        Items are bodies, which share tag, keys and properties, or `Message` objects of this topic, which have their own.
        What is too much for one request is split; delayed messages travel alone, because no broker takes them in a batch.
        Messages of one message group (the property `__SHARDINGKEY`) go to its queue, in their order and group after group,
        unless `queue` or `order_key` says where all go. A failure in the middle leaves the earlier ones sent. `timeout` holds
        for each request.
        """
        self._running()
        items = batch_items(bodies)
        if items and not self._hooks and not any(isinstance(item, Message) for item in items):
            shared = self.message(topic, b"", tag=tag, keys=keys, properties=properties)
            encode = self._options.codec.encode
            encoded = [item if type(item) is bytes else encode(item) for item in items]
            to = destination(topic, queue, order_key, shared.properties.get(names.SHARDING_KEY))
            return await self._send_alike(shared, encoded, to, timeout)
        messages = [
            item if isinstance(item, Message) else self.message(topic, item, tag=tag, keys=keys, properties=properties)
            for item in items
        ]
        return await self._send_messages(topic, messages, destination(topic, queue, order_key), timeout)

    async def send_encoded(
        self,
        topic: str,
        members: bytes,
        *,
        queue: QueueRef | None = None,
        born_ms: int | None = None,
        timeout: float | None = None,
    ) -> SendStatus:
        """Send many messages that are encoded already, as message/batch.py draws it, each with an id from `new_ids`.

        For whoever encodes thousands at once: nothing is checked, hooks see nothing, and instead of receipts there is one
        word for all on how safe they are. `born_ms`: when all of them were born, if not now.
        """
        delivery = self._running()
        header = self._header(wrapped(self._config.namespace, topic), {}, 0, 0, batch=True)
        if born_ms is not None:
            header.born_timestamp = born_ms
        seconds = self._timeout(timeout)
        code, to = RequestCode.SEND_BATCH_MESSAGE, destination(topic, queue)
        return STATUS_BY_CODE[(await delivery.deliver(code, header, members, to, seconds)).answer.code]

    async def new_ids(self, count: int) -> list[str]:
        """Ids for messages that are encoded elsewhere."""
        self._running()
        assert self._instance is not None
        return self._instance.unique_ids.take(count)

    async def send_oneway(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        message_group: str | None = None,
        queue: QueueRef | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
    ) -> None:
        """Send without an answer: the fastest way, and nobody will know if the message is lost, or refused."""
        delivery = self._running()
        message = self.message(topic, body, tag=tag, keys=keys, properties=properties)
        _give_wishes(message, delay_level, message_group)
        check_topic(message.topic)
        check_body(message.body, self._options.max_message_bytes)
        sending = self._prepared(message)
        if delay is not None or deliver_at is not None:
            await self._delay(sending, delay, deliver_at, self._options.timeout_seconds)
        to = destination(topic, queue, order_key, message.properties.get(names.SHARDING_KEY))
        with self._watched([sending]):
            header, data = await self._encoded(sending, 0)
            address = await delivery.deliver_oneway(header, data, to, self._options.timeout_seconds)
        self._tell([sending], [None], address)

    async def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Take a delayed message back before it is delivered: its id. `handle` is the `recall_handle` of its receipt.

        RequestFailed when it is too late, or the broker allows no recall (`recallMessageEnable`); 5.x only.
        """
        delivery, instance = self._running(), self._instance
        assert instance is not None
        check_topic(topic)
        deadline = asyncio.get_running_loop().time() + self._timeout(timeout)
        wire_topic = wrapped(self._config.namespace, topic)
        await delivery.until(deadline, delivery.route(wire_topic), topic)
        recall, message_id = await take_back(instance.cluster, self.group, wire_topic, handle, deadline)
        for hook in self._hooks:
            hook.after_recall(recall)
        if recall.error is not None:
            raise recall.error
        return message_id

    # ---- asking and answering

    async def request(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        queue: QueueRef | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Send a request and wait for its reply, which some consumer of the topic sends.

        `timeout` spans everything, in seconds; CallTimeout when it is over, and its text tells whether the request was sent.
        """
        delivery, instance = self._running(), self._instance
        assert instance is not None
        check_topic(topic)
        if not self._asks:
            self._asks = True
            # A reply may come through any broker of the cluster: whoever answers chooses it.
            instance.introduce_to_brokers_of([TEMPLATE_TOPIC])
        message = self.message(topic, body, tag=tag, keys=keys, properties=properties)
        seconds = self._timeout(timeout)
        correlation_id = next(instance.unique_ids)
        reply = instance.requests.expect(message, self, correlation_id, seconds)
        sent = False
        try:
            async with asyncio.timeout(seconds):
                route = await delivery.route(wrapped(self._config.namespace, topic))
                await instance.greet(route.brokers)
                await self.send_message(message, order_key=order_key, queue=queue, timeout=seconds)
                sent = True
                return await reply
        except TimeoutError:
            raise no_reply(topic, seconds, sent=sent) from None
        finally:
            instance.requests.forget(correlation_id)

    async def reply(self, to: ReceivedMessage, body: object, *, timeout: float | None = None) -> Receipt:
        """Answer a request that a consumer got; RequestFailed when who asked is not there any more."""
        delivery = self._running()
        data = body if type(body) is bytes else self._options.codec.encode(body)
        message = reply_to(to, data)
        check_body(data, self._options.max_message_bytes)
        sending = Sending(self.group, message.topic, data, message.properties)
        assert self._instance is not None
        sending.properties[names.UNIQUE_KEY] = next(self._instance.unique_ids)
        with self._watched([sending]):
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._timeout(timeout)
            header, data = await self._encoded(sending, 0)
            # The broker that has the request knows who asked; others may not.
            route = await delivery.until(deadline, delivery.route(message.topic), message.topic)
            asked_at = to.queue.broker_name
            near = next((queue for queue in route.writable if queue.broker_name == asked_at), None)
            destination = Destination(near=near)
            code, seconds = RequestCode.SEND_REPLY_MESSAGE_V2, max(0.0, deadline - loop.time())
            delivered = await delivery.deliver(code, header, data, destination, seconds)
            receipt = self._receipt(delivered, message.topic, sending)
        self._tell([sending], [receipt], delivered.address)
        return receipt

    async def queues(self, topic: str) -> list[QueueRef]:
        """The queues that a message of this topic can go to."""
        delivery = self._running()
        check_topic(topic)
        route = await delivery.route(wrapped(self._config.namespace, topic))
        return [QueueRef(topic, queue.broker_name, queue.queue_id) for queue in route.writable]

    @property
    def cluster(self) -> Cluster:
        """The cluster as this producer sees it."""
        self._running()
        assert self._instance is not None
        return self._instance.cluster

    # ---- from message to request

    def _running(self) -> Delivery:
        if self._delivery is None or self.closed:
            what = "closed" if self.closed else "not started"
            raise AlreadyClosed(
                f"producer {self.group!r} is {what}", hint="use it inside `async with client.producer(...)`"
            )
        return self._delivery

    def _timeout(self, given: float | None) -> float:
        return self._options.timeout_seconds if given is None else given

    async def _delay(
        self, sending: Sending, delay: timedelta | None, deliver_at: datetime | None, seconds: float
    ) -> float:
        """Ask for the delay in the way that the topic's brokers understand; how many of the `seconds` are left."""
        delivery, instance = self._running(), self._instance
        assert instance is not None
        check_delay(delay, deliver_at, sending.properties)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        route = await delivery.until(deadline, delivery.route(sending.topic), sending.topic)
        has_timers = await delivery.until(deadline, instance.all_are_5(route.brokers), sending.topic)
        name, value = timer_property(delay, deliver_at) if has_timers else level_property(delay)
        sending.properties[name] = value
        return max(0.0, deadline - loop.time())

    def _prepared(self, message: Message) -> Sending:
        """What goes on the wire of a message; the message itself stays as it was."""
        assert self._instance is not None
        properties = dict(message.properties)
        if names.UNIQUE_KEY not in properties:
            properties[names.UNIQUE_KEY] = next(self._instance.unique_ids)
        return self._sending(message, properties)

    def _prepared_together(self, messages: list[Message]) -> list[Sending]:
        sendings = []
        for message, unique_key in zip(messages, self._new_ids(len(messages)), strict=True):
            properties = dict(message.properties)
            properties.setdefault(names.UNIQUE_KEY, unique_key)
            sendings.append(self._sending(message, properties))
        return sendings

    def _new_ids(self, count: int) -> list[str]:
        assert self._instance is not None
        ids: list[str] = []
        while len(ids) < count:
            ids += self._instance.unique_ids.take(min(count - len(ids), _IDS_AT_ONCE))
        return ids

    def _sending(self, message: Message, properties: dict[str, str]) -> Sending:
        namespace = self._config.namespace
        if namespace:
            properties[names.INSTANCE_ID] = namespace
        return Sending(self.group, wrapped(namespace, message.topic), message.body, properties)

    async def _encoded(self, sending: Sending, flag: int) -> tuple[SendMessageV2, bytes]:
        body, sys_flag = sending.body, 0
        if self._compression.applies_to(body):
            body, sys_flag = await self._compression.apply(body)
        return self._header(sending.topic, sending.properties, sys_flag, flag), body

    def _header(
        self, topic: str, properties: Mapping[str, str], sys_flag: int, flag: int, *, batch: bool = False
    ) -> SendMessageV2:
        if names.PREPARED in properties:
            sys_flag |= TRANSACTION_PREPARED
        return SendMessageV2(
            producer_group=self.group,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=self._options.create_queues,
            queue_id=-1,  # chosen with the broker
            sys_flag=sys_flag,
            born_timestamp=self._config.clock.now_ms(),
            flag=flag,
            properties=properties_text(properties),
            batch=batch,
        )

    def _receipt(self, delivered: Delivered, topic: str, sending: Sending) -> Receipt:
        return receipt_of(delivered.answer, topic, delivered.broker_name, sending.properties[names.UNIQUE_KEY])

    @contextmanager
    def _watched(self, sendings: list[Sending]) -> Iterator[None]:
        """Hooks see these before the block and, if it fails, those of them that no broker has taken."""
        began = asyncio.get_running_loop().time()
        watching: list[tuple[SendHook, Sending]] = []
        try:
            for sending in sendings:
                sending.began_at = began
                for hook in self._hooks:
                    hook.before_send(sending)
                    watching.append((hook, sending))
            yield
        except BaseException as error:
            failure = error if isinstance(error, OrbitError) else _broken_off(error)
            now = asyncio.get_running_loop().time()
            for hook, sending in watching:
                if sending.receipt is None:
                    sending.error, sending.seconds = failure, now - began
                    hook.after_send(sending)
            raise

    def _tell(self, sendings: list[Sending], receipts: Sequence[Receipt | None], store_address: Address) -> None:
        """How sends have ended, if anybody wants to know."""
        if not self._hooks:
            return
        now = asyncio.get_running_loop().time()
        for sending, receipt in zip(sendings, receipts, strict=True):
            sending.receipt = receipt
            sending.seconds = now - sending.began_at
            sending.store_address = str(store_address)
        for sending in sendings:  # after all have their receipts: a hook that raises does not make failures of them
            for hook in self._hooks:
                hook.after_send(sending)

    # ---- batches

    def _batched_bytes(self, message: Message) -> int:
        """At most."""
        own = len(properties_text(message.properties).encode())
        return MEMBER_OVERHEAD + len(message.body) + own + _ADDED_BYTES + len(self._config.namespace)

    async def _send_accumulated(self, messages: list[Message], seconds: float) -> list[Receipt]:
        return await self._send_messages(messages[0].topic, messages, ANYWHERE, seconds)

    async def _send_alike(
        self, shared: Message, bodies: list[bytes], to: Destination, timeout: float | None
    ) -> list[Receipt]:
        """As `_send_messages` does, of bodies that differ in nothing else and that no hook wants to see."""
        check_topic(shared.topic)
        for body in (min(bodies, key=len), max(bodies, key=len)):  # if these may pass, all may
            check_body(body, self._options.max_message_bytes)
        topic, properties = wrapped(self._config.namespace, shared.topic), shared.properties
        if self._config.namespace:
            properties[names.INSTANCE_ID] = self._config.namespace
        delivery, options, seconds = self._delivery, self._options, self._timeout(timeout)
        assert delivery is not None
        receipts: list[Receipt] = []
        ids = self._new_ids(len(bodies))
        for some, members in alike(bodies, ids, properties, options.max_message_bytes, options.max_batch_messages):
            header = self._header(topic, {}, 0, 0, batch=True)
            delivered = await delivery.deliver(RequestCode.SEND_BATCH_MESSAGE, header, members, to, seconds)
            receipts += batch_receipts_of(delivered.answer, shared.topic, delivered.broker_name, some)
        return receipts

    async def _send_messages(
        self, topic: str, messages: list[Message], to: Destination, timeout: float | None
    ) -> list[Receipt]:
        check_topic(topic)
        for message in messages:
            if message.topic != topic:
                raise MessageError(
                    f"a message for topic {message.topic!r} is in a batch for {topic!r}", hint="send a batch a topic"
                )
            check_body(message.body, self._options.max_message_bytes)
        sendings = self._prepared_together(messages)
        with self._watched(sendings):
            return await self._send_prepared(topic, messages, sendings, to, timeout)

    async def _send_prepared(
        self, topic: str, messages: list[Message], sendings: list[Sending], to: Destination, timeout: float | None
    ) -> list[Receipt]:
        max_bytes, max_messages = self._options.max_message_bytes, self._options.max_batch_messages
        groups = {None: [*range(len(messages))]} if to.is_fixed else by_group(messages)
        batches: list[tuple[Destination, Batch]] = []
        places: list[int] = []  # of the messages in the list given, in the order they are sent in
        # All are encoded before the first is sent: what cannot be sent shows while nothing is.
        for group, members in groups.items():
            some, flags = [sendings[place] for place in members], [messages[place].flag for place in members]
            towards = to if group is None else Destination(message_group=group)
            batches += [(towards, batch) for batch in split(some, flags, max_bytes, max_messages)]
            places += members
        receipts: list[Receipt] = []
        for towards, batch in batches:
            receipts += await self._send_one_batch(topic, batch, towards, timeout)
        by_place = dict(zip(places, receipts, strict=True))
        return [by_place[place] for place in range(len(messages))]

    async def _send_one_batch(self, topic: str, batch: Batch, to: Destination, timeout: float | None) -> list[Receipt]:
        delivery, first, seconds = self._delivery, batch.sendings[0], self._timeout(timeout)
        assert delivery is not None  # what was accumulated is sent while the producer is being closed
        if batch.must_be_single:
            header = self._header(first.topic, first.properties, 0, batch.members[0].flag)
            delivered = await delivery.deliver(RequestCode.SEND_MESSAGE_V2, header, first.body, to, seconds)
            receipts = [self._receipt(delivered, topic, first)]
        else:
            # Brokers add the batch's properties to each member's, where they win: an id for the batch would hide theirs.
            shared = {name: first.properties[name] for name in (names.WAIT,) if name in first.properties}
            header = self._header(first.topic, shared, 0, 0, batch=True)
            delivered = await delivery.deliver(RequestCode.SEND_BATCH_MESSAGE, header, batch.body(), to, seconds)
            receipts = batch_receipts_of(delivered.answer, topic, delivered.broker_name, batch.ids())
        self._tell(batch.sendings, receipts, delivered.address)
        return receipts


def _give_wishes(message: Message, delay_level: int, message_group: str | None) -> None:
    if delay_level:
        check_level(delay_level)
        message.properties[names.DELAY] = str(int(delay_level))
    if message_group not in (None, ""):
        message.properties[names.SHARDING_KEY] = message_group


def _broken_off(error: BaseException) -> OrbitError:
    what = "was cancelled" if isinstance(error, asyncio.CancelledError) else f"was broken off by {error!r}"
    failure = OrbitError(f"the send {what}", hint="a broker may have the message all the same")
    failure.__cause__ = error
    return failure
