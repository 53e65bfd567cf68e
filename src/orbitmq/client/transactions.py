"""Messages that become visible only if something else went well: sent as halves, then committed or rolled back.

    begin ─> half message stored, nobody sees it ─> the block runs ─┬─ commit()             consumers get it
                                                                    ├─ an exception         it never was
                                                                    └─ neither, or silence  the broker asks `check`

Java: TransactionMQProducer, DefaultMQProducerImpl.sendMessageInTransaction, endTransaction
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from orbitmq.client import instance as instances
from orbitmq.client.hooks import TransactionEnd
from orbitmq.client.names import TEMPLATE_TOPIC, check_topic
from orbitmq.client.namespaces import wrapped
from orbitmq.client.producer import Producer
from orbitmq.client.receipts import SendStatus
from orbitmq.client.transaction_checks import TransactionChecks, decision_of
from orbitmq.errors import AlreadyClosed, ConfigError, OrbitError, RequestFailed, TransportError
from orbitmq.message import properties as names
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.transactions import UNKNOWN, EndTransaction
from orbitmq.tasks import Once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from orbitmq.client.config import ClientConfig
    from orbitmq.client.instance import Instance
    from orbitmq.client.producer import Keys
    from orbitmq.client.producer_options import ProducerOptions
    from orbitmq.client.receipts import Receipt
    from orbitmq.client.transaction_checks import Check
    from orbitmq.message import Message

logger = logging.getLogger(__name__)

_END_SECONDS: Final = 3.0


class TransactionProducer:
    """Sends messages in transactions. Made by `Client.transaction_producer`; safe to use from many tasks at once."""

    def __init__(
        self, config: ClientConfig, group: str, options: ProducerOptions, check: Check, topics: Sequence[str]
    ) -> None:
        for topic in topics:
            check_topic(topic)
        self._config = config
        self._topics = [wrapped(config.namespace, topic) for topic in topics]
        self._producer = Producer(config, group, options)
        self.group = self._producer.group
        self.stats = self._producer.stats
        self._hooks = options.hooks
        self._checks = TransactionChecks(config, self.group, check, self._tell)
        self._instance: Instance | None = None
        self._ending = Once()

    @property
    def closed(self) -> bool:
        """Whether somebody has begun to close it."""
        return self._producer.closed

    async def start(self) -> Self:
        """Join the client's connections, and be there when brokers ask."""
        if self._instance is None:
            await self._producer.start()
            self._instance = instances.acquire(self._config)
            self._instance.transaction_checks.setdefault(self.group, []).append(self._checks)
            self._checks.start()
            # Brokers ask those they know. The template topic is on all of them, if it is anywhere.
            self._instance.introduce_to_brokers_of([TEMPLATE_TOPIC, *self._topics])
        return self

    async def close(self) -> None:
        """Wait for what is on its way, leave the group. Undecided transactions are asked of another member of the group.

        Who is cancelled meanwhile leaves it going on; a second call waits for its end.
        """
        await self._ending.run(self._leave, f"closing transaction producer {self.group}")

    async def _leave(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            left = instance.transaction_checks[self.group]
            left.remove(self._checks)
            if not left:
                del instance.transaction_checks[self.group]
            await self._checks.close()
        try:
            await self._producer.close()
        finally:
            if instance is not None:
                await instances.release(instance)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def begin(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        check_after: timedelta | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """`async with producer.begin(...) as transaction:` sends the message as a half when the block is entered.

        What `transaction.commit()` or `roll_back()` said counts when the block is left; without either, an exception rolls
        back and is passed on, and anything else leaves the decision to `check`. `check_after` is how long the broker should
        wait before it asks; its own default is some seconds.
        """
        message = self._producer.message(topic, body, tag=tag, keys=keys, properties=properties, flag=flag)
        message.properties[names.PREPARED] = "true"
        message.properties[names.PRODUCER_GROUP] = self.group
        if check_after is not None:
            seconds = round(check_after.total_seconds()) if isinstance(check_after, timedelta) else 0
            if seconds <= 0:
                raise ConfigError(f"check_after is {check_after}", hint="give a timedelta of a second or more")
            message.properties[names.CHECK_IMMUNITY_SECONDS] = str(seconds)
        return Transaction(self, message, timeout)

    async def _send_half(self, message: Message, timeout: float | None) -> Receipt:
        receipt = await self._producer.send_message(message, timeout=timeout)
        if receipt.status is not SendStatus.STORED:
            await self._end(message, receipt, False)
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"the half message of a transaction is stored, but {receipt.status.value}: it is rolled back",
                hint="are the broker's disk and replica in order? then begin again",
            )
        return receipt

    async def _end(
        self, message: Message, receipt: Receipt, verdict: bool | None, error: BaseException | None = None
    ) -> None:
        """A broker that does not hear of it will ask, so nothing is raised: what the program did stands."""
        queue, decision = receipt.queue, decision_of(verdict)
        address = self._instance.cluster.master(queue.broker_name) if self._instance is not None else None
        self._tell(
            TransactionEnd(
                self.group,
                wrapped(self._config.namespace, queue.topic),
                receipt.message_id,
                message.properties,
                verdict,
                "" if address is None else str(address),
                from_check=False,
            )
        )
        header = EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=parse_offset_message_id(receipt.offset_id)[1],
            commit_or_rollback=decision,
            msg_id=receipt.message_id,
            topic=wrapped(self._config.namespace, queue.topic),
            transaction_id=receipt.transaction_id or None,
            bname=queue.broker_name,
        )
        command = request(RequestCode.END_TRANSACTION, header)
        if error is not None:
            command.remark = f"executeLocalTransactionBranch exception: {error!r}"
        try:
            if self._instance is None:
                raise AlreadyClosed(f"transaction producer {self.group!r} is closed", hint="close it last")
            cluster = self._instance.cluster
            if address is None:
                raise TransportError(f"broker {queue.broker_name!r} has no master now", hint="is it running?")
            if decision == UNKNOWN:
                await cluster.notify(cluster.vip(address), command)  # to this, brokers have nothing to say
            else:
                await cluster.ask(cluster.vip(address), command, _END_SECONDS)
        except OrbitError as failure:
            logger.warning(
                "the end of transaction %s did not reach its broker, which will ask: %s", receipt.message_id, failure
            )

    def _tell(self, end: TransactionEnd) -> None:
        """Whatever hooks make of it, the broker hears how it ended."""
        for hook in self._hooks:
            try:
                hook.after_transaction(end)
            except Exception:
                logger.exception("a hook of group %s failed; the broker is told all the same", self.group)


class Transaction:
    """One half message, until its block ends. See `TransactionProducer.begin`."""

    __slots__ = ("_message", "_producer", "_receipt", "_timeout", "_verdict")

    def __init__(self, producer: TransactionProducer, message: Message, timeout: float | None) -> None:
        self._producer = producer
        self._message = message
        self._timeout = timeout
        self._receipt: Receipt | None = None
        self._verdict: bool | None = None

    @property
    def receipt(self) -> Receipt:
        """Where the half message is stored; its `message_id` is the one that consumers will see."""
        if self._receipt is None:
            raise ConfigError("this transaction has not begun", hint="use it inside `async with producer.begin(...)`")
        return self._receipt

    def commit(self) -> None:
        """When the block ends, let consumers have the message."""
        self._verdict = True

    def roll_back(self) -> None:
        """When the block ends, let the message vanish."""
        self._verdict = False

    async def __aenter__(self) -> Self:
        if self._receipt is not None:
            raise ConfigError("this transaction has begun already", hint="begin() makes a new one")
        self._receipt = await self._producer._send_half(self._message, self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A block that was cancelled may have done its work or not: only the check can know.
        if isinstance(error, Exception) and self._verdict is None:
            self._verdict = False
        await self._producer._end(self._message, self.receipt, self._verdict, error)
