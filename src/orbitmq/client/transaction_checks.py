"""Brokers ask how a transaction went whose end they have not heard of; the program's `check` knows, or does not know yet.

    broker ─ check (39) ─> queue ─> check(message) ─ commit, roll back or unknown (37) ─> the connection it came from

Java: ClientRemotingProcessor.checkTransactionState, DefaultMQProducerImpl.checkTransactionState
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbitmq.client.hooks import TransactionEnd
from orbitmq.client.incoming import Incoming
from orbitmq.client.names import retry_topic
from orbitmq.client.workers import is_async
from orbitmq.errors import ConfigError, TransportError
from orbitmq.message import QueueRef
from orbitmq.message import properties as names
from orbitmq.message.record import decode_record
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, CheckTransactionState, EndTransaction
from orbitmq.protocol.signing import sign
from orbitmq.tasks import Tasks, is_cancelled

if TYPE_CHECKING:
    from orbitmq.client.config import ClientConfig
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.message import StoredMessage
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

Check = Callable[[Any], Awaitable[bool | None] | bool | None]
"""Takes the message of a transaction (or its body as a value, by annotation): True commits, False rolls back, None: not known yet."""

_AT_ONCE: Final = 4
_MAX_WAITING: Final = 2000  # Java: checkRequestHoldMax


class _Question(NamedTuple):
    header: CheckTransactionState
    stored: StoredMessage
    connection: Connection


class TransactionChecks:
    """Answers what brokers ask about the transactions of one producer.

    A check may take its time, or use the very connection that brought the question, so it never runs where that is read.
    """

    def __init__(self, config: ClientConfig, group: str, check: Check, tell: Callable[[TransactionEnd], None]) -> None:
        """`tell` hears of each answer before its broker does, and raises nothing."""
        self._config = config
        self._group = group
        self._check = check
        self._tell = tell
        self._incoming = Incoming(config.namespace, retry_topic(group))
        self._questions: asyncio.Queue[_Question] = asyncio.Queue(_MAX_WAITING)
        self._tasks = Tasks()

    def start(self) -> None:
        for number in range(_AT_ONCE):
            self._tasks.start(self._answer_questions(), f"transaction check {number} of {self._group}")

    async def close(self) -> None:
        await self._tasks.close()

    def ask(self, question: _Question) -> None:
        """Beyond what can wait here questions are dropped: their broker asks again."""
        if not self._questions.full():
            self._questions.put_nowait(question)

    async def _answer_questions(self) -> None:
        while True:
            question = await self._questions.get()
            try:
                verdict, remark = await self._decide(question)
                self._tell_hooks(question, verdict)
                self._answer(question, decision_of(verdict), remark)
            except Exception:
                logger.exception("a broker's question to group %s failed: it will ask again", self._group)

    async def _decide(self, question: _Question) -> tuple[bool | None, str | None]:
        stored = question.stored
        queue = QueueRef(stored.topic, question.header.bname or "", stored.queue_id)
        message = self._incoming.message(stored, queue, None)
        try:
            return await _verdict(self._check, message), None
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            logger.exception("the check of group %s failed on %r: its broker will ask again", self._group, message)
            return None, f"checkLocalTransactionState Exception: {error!r}"

    def _tell_hooks(self, question: _Question, verdict: bool | None) -> None:
        stored = question.stored
        self._tell(
            TransactionEnd(
                self._group,
                stored.topic,
                stored.message_id,
                stored.properties,
                verdict,
                str(question.connection.peer),
                from_check=True,
            )
        )

    def _answer(self, question: _Question, decision: int, remark: str | None) -> None:
        header, stored = question.header, question.stored
        end = EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=decision,
            msg_id=stored.message_id,
            topic=header.topic,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        command = new_request(RequestCode.END_TRANSACTION, end)
        command.remark = remark
        if self._config.credentials is not None:
            sign(command, self._config.credentials)
        try:
            question.connection.notify(command)
        except TransportError as error:
            logger.info(
                "a broker did not hear how a transaction of %s went, and will ask again: %s", self._group, error
            )


def decision_of(verdict: bool | None) -> int:
    return UNKNOWN if verdict is None else COMMIT if verdict else ROLLBACK


async def _verdict(check: Check, message: ReceivedMessage) -> bool | None:
    found = check(message) if is_async(check) else await asyncio.to_thread(check, message)
    verdict = await found if inspect.isawaitable(found) else found
    if verdict is not None and not isinstance(verdict, bool):
        raise ConfigError(f"the check returned {verdict!r}", hint="True commits, False rolls back, None: not known yet")
    return verdict


async def transaction_asked(
    checks: dict[str, list[TransactionChecks]], request: Command, connection: Connection
) -> None:
    """The handler of a broker's question, which goes to the group that the message names."""
    header = request.read(CheckTransactionState)
    stored = decode_record(request.body)
    group = stored.properties.get(names.PRODUCER_GROUP, "")
    asked = checks.get(group)
    if asked:
        asked[-1].ask(_Question(header, stored, connection))
    else:
        logger.info("a broker asks about a transaction of group %s, which has no transaction producer here", group)
