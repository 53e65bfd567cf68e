"""Transaction producers against a scripted cluster: what goes out, what brokers ask, what happens when they cannot be told."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from orbitmq import Client, ReceivedMessage, SendHook, Transaction, connect
from orbitmq.client.hooks import TransactionEnd
from orbitmq.errors import AlreadyClosed, ConfigError, RequestFailed
from orbitmq.message.record import encode_stored
from orbitmq.message.sysflags import TRANSACTION_PREPARED
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, request
from orbitmq.protocol.headers.send import SendMessageV2, SendReceipt
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, CheckTransactionState, EndTransaction
from orbitmq.transport.connection import Connection
from tests.client.scripted import ScriptedCluster, eventually, refuse, scripted_cluster

END = RequestCode.END_TRANSACTION


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with scripted_cluster(topics={"T": 1}) as cluster:
        yield cluster


async def never_asked(message: ReceivedMessage) -> bool | None:
    raise AssertionError("nobody asks here")


async def commit_and_raise(transaction: Transaction) -> None:
    transaction.commit()
    raise ZeroDivisionError


def decisions(cluster: ScriptedCluster) -> list[int]:
    return [command.read(EndTransaction).commit_or_rollback for command in cluster.broker.received(END)]


async def test_a_half_message_and_its_end_say_what_javas_say(cluster: ScriptedCluster, client: Client) -> None:
    async with (
        client.transaction_producer("P", check=never_asked) as producer,
        producer.begin("T", b"x", tag="t", check_after=timedelta(seconds=7)) as transaction,
    ):
        transaction.commit()
    header = cluster.broker.received(RequestCode.SEND_MESSAGE_V2)[0].read(SendMessageV2)
    assert header.sys_flag == TRANSACTION_PREPARED
    [stored] = cluster.broker.queues["T", 0]
    half = {"TRAN_MSG": "true", "PGROUP": "P", "CHECK_IMMUNITY_TIME_IN_SECONDS": "7", "TAGS": "t"}
    assert stored.properties.items() >= half.items()
    end = cluster.broker.received(END)[0].read(EndTransaction)
    assert end == EndTransaction(
        producer_group="P",
        tran_state_table_offset=0,
        commit_log_offset=stored.commit_log_offset,
        commit_or_rollback=COMMIT,
        msg_id=transaction.receipt.message_id,
        topic="T",
        from_transaction_check=False,
        bname="broker-a",
    )


async def test_how_a_block_ends_decides(cluster: ScriptedCluster, client: Client) -> None:
    async with client.transaction_producer("P", check=never_asked) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.begin("T", b"raised"):
                raise ZeroDivisionError
        committed = producer.begin("T", b"committed, then raised")
        with pytest.raises(ZeroDivisionError):
            async with committed:
                await commit_and_raise(committed)
        async with producer.begin("T", b"neither"):
            pass

        async def cancelled() -> None:
            async with producer.begin("T", b"cancelled"):
                await asyncio.sleep(60)

        task = asyncio.create_task(cancelled())
        await eventually(lambda: len(cluster.broker.queues["T", 0]) == 4)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: len(decisions(cluster)) == 4)
    assert decisions(cluster) == [ROLLBACK, COMMIT, UNKNOWN, UNKNOWN]
    assert "ZeroDivisionError" in (cluster.broker.received(END)[0].remark or "")


async def test_brokers_are_answered_over_the_connection_they_asked_on(cluster: ScriptedCluster, client: Client) -> None:
    asked: list[bytes] = []

    def check(body: bytes) -> bool | None:
        asked.append(body)
        if body == b"bug":
            raise ValueError("a bug in the check")
        return {b"yes": True, b"no": False, b"state": "ROLLED_BACK"}.get(body)  # type: ignore[return-value]

    async with client.transaction_producer("P", check=check, topics=["T"]):
        await eventually(lambda: "P" in cluster.broker.producers)
        for number, body in enumerate((b"yes", b"no", b"later", b"bug", b"state")):
            half = cluster.broker.put("T", 0, body, PGROUP="P", UNIQ_KEY=f"id-{number}")
            question = CheckTransactionState(
                tran_state_table_offset=number, commit_log_offset=100 + number, topic="HALF", transaction_id="t"
            )
            command = request(RequestCode.CHECK_TRANSACTION_STATE, question, encode_stored(half))
            cluster.broker.producers["P"].notify(command)
        await eventually(lambda: len(cluster.broker.received(END)) == 5)
    ends = sorted((one.read(EndTransaction) for one in cluster.broker.received(END)), key=lambda end: end.msg_id or "")
    assert [end.commit_or_rollback for end in ends] == [COMMIT, ROLLBACK, UNKNOWN, UNKNOWN, UNKNOWN]
    assert [(end.tran_state_table_offset, end.commit_log_offset) for end in ends] == [(n, 100 + n) for n in range(5)]
    assert {(end.producer_group, end.topic, end.from_transaction_check, end.transaction_id) for end in ends} == {
        ("P", "HALF", True, "t")
    }
    assert any("a bug in the check" in (one.remark or "") for one in cluster.broker.received(END))


async def test_one_topic_may_be_given_as_a_text() -> None:
    async with (
        scripted_cluster(topics={"Payments": 1}) as cluster,
        connect(cluster.address) as client,
        client.transaction_producer("P", check=never_asked, topics="Payments"),
    ):
        await eventually(lambda: "P" in cluster.broker.producers)


async def test_a_half_message_that_is_not_safe_is_rolled_back(cluster: ScriptedCluster, client: Client) -> None:
    async def stored_but_no_replica(command: Command, connection: Connection) -> Command:
        receipt = SendReceipt(msg_id="7F00000100002A9F0000000000000005", queue_id=0, queue_offset=3)
        return answer(ResponseCode.SLAVE_NOT_AVAILABLE, header=receipt)

    cluster.broker.inject(RequestCode.SEND_MESSAGE_V2, stored_but_no_replica)
    async with client.transaction_producer("P", check=never_asked) as producer:
        with pytest.raises(RequestFailed, match="rolled back"):
            async with producer.begin("T", b"x"):
                raise AssertionError("the block must not run")
    assert decisions(cluster) == [ROLLBACK]


async def test_an_end_that_does_not_arrive_is_logged_and_left_to_the_check(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.inject(END, refuse(ResponseCode.SYSTEM_ERROR, "no such half message"))
    async with (
        client.transaction_producer("P", check=never_asked) as producer,
        producer.begin("T", b"x") as transaction,
    ):
        transaction.commit()
    [record] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "which will ask" in record.getMessage()
    assert "no such half message" in record.getMessage()


async def test_a_hook_that_fails_keeps_no_end_from_its_broker(
    cluster: ScriptedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[TransactionEnd] = []

    class Failing(SendHook):
        def after_transaction(self, end: TransactionEnd) -> None:
            raise ZeroDivisionError

    class Watching(SendHook):
        def after_transaction(self, end: TransactionEnd) -> None:
            seen.append(end)

    hooks = [Failing(), Watching()]
    async with client.transaction_producer("P", check=lambda message: False, hooks=hooks) as producer:
        async with producer.begin("T", b"x") as transaction:
            transaction.commit()
        [half] = cluster.broker.queues["T", 0]
        question = CheckTransactionState(tran_state_table_offset=0, commit_log_offset=100, topic="T")
        await eventually(lambda: "P" in cluster.broker.producers)
        cluster.broker.producers["P"].notify(
            request(RequestCode.CHECK_TRANSACTION_STATE, question, encode_stored(half))
        )
        await eventually(lambda: len(decisions(cluster)) == 2)
    assert decisions(cluster) == [COMMIT, ROLLBACK]
    assert [(end.committed, end.from_check) for end in seen] == [(True, False), (False, True)]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR] == [
        "a hook of group P failed; the broker is told all the same"
    ] * 2


async def test_mistakes_are_named(client: Client) -> None:
    async with client.transaction_producer("P", check=never_asked) as producer:
        with pytest.raises(ConfigError, match="check_after"):
            producer.begin("T", b"x", check_after=timedelta(0))
        with pytest.raises(ConfigError, match="check_after is 5"):
            producer.begin("T", b"x", check_after=5)  # type: ignore[arg-type]
        transaction = producer.begin("T", b"x")
        with pytest.raises(ConfigError, match="has not begun"):
            _ = transaction.receipt
        async with transaction:
            with pytest.raises(ConfigError, match="has begun"):
                await transaction.__aenter__()
            transaction.commit()
    with pytest.raises(AlreadyClosed):
        await producer.begin("T", b"x").__aenter__()
