"""What an answer promises: flushed before it is said, and what is said when the disk does not keep up or fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.broker.leases.lease_log import LeaseLog
from orbitmq.errors import StoreFenced
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.protocol.command import Command
from tests.broker.kit import SEND_BATCH, SEND_V2, VIEW_MESSAGE, Wire, configuration, running, send_header, wire
from tests.broker.lease_kit import LeaseClient
from tests.raw_client import until
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.leases.checkpoints import Checkpoint
    from orbitmq.protocol.codes import ResponseCode

pytestmark = pytest.mark.usefixtures("loops")

END_TRANSACTION, COMMIT, ROLL_BACK = 37, 8, 12
SEND_BACK, RECALL = 36, 370

Ask = Callable[[], Awaitable[Command]]
Prepare = Callable[[Wire], Awaitable[Ask]]


class Gate:
    """Holds back every sync of the commit log until opened."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        sync = broker.state.store.log.files.sync

        def when_open(start: int, end: int) -> None:
            self._open.wait(20)
            sync(start, end)

        monkeypatch.setattr(broker.state.store.log.files, "sync", when_open)

    def open(self) -> None:
        self._open.set()


async def round_trips(client: Wire) -> None:
    """Long enough for anything that does not wait for the disk."""
    for _ in range(20):
        await client.pull("T")
        await asyncio.sleep(0.005)


async def test_when_too_many_wait_for_the_disk_the_next_is_refused_and_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_broker = running(tmp_path, flushDiskType="SYNC_FLUSH", sendThreadPoolQueueCapacity="5")
    async with small_broker as broker, wire(broker) as client:
        gate = Gate(broker, monkeypatch)
        waiting = [await client.start(SEND_V2, send_header("T"), b"%d" % i) for i in range(5)]
        await until(lambda: broker.state.durability.unanswered == 5, what="five waiting")

        refused = await client.ask(SEND_V2, send_header("T"), b"one too many")

        assert refused.code == 2  # SYSTEM_BUSY
        assert "[OVERLOAD] 5 messages wait" in (refused.remark or "")
        gate.open()
        assert {(await answer).code for answer in waiting} == {0}
        await until(lambda: broker.state.store.queue_range("T", 0).max_offset == 5, what="all visible")
        assert (await client.ask(SEND_V2, send_header("T"), b"later")).code == 0
        await until(lambda: broker.state.store.queue_range("T", 0).max_offset == 6, what="the later one visible")
        assert await client.bodies("T") == [b"0", b"1", b"2", b"3", b"4", b"later"]


async def test_with_sync_flush_the_answer_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker, wire(broker) as client:
        gate = Gate(broker, monkeypatch)
        answers = [await client.start(SEND_V2, send_header("T"), b"%d" % i) for i in range(10)]
        batch = encode_batch([BatchMember(b"a"), BatchMember(b"b")])
        answers.append(await client.start(SEND_BATCH, send_header("T", changes={"batch": True}), batch))
        await round_trips(client)
        assert not any(answer.done() for answer in answers)
        assert await client.bodies("T") == []  # nobody sees what a power cut would take back
        assert (await client.ask(VIEW_MESSAGE, {"offset": 0})).code == 1

        gate.open()

        assert {(await answer).code for answer in answers} == {0}
        await until(lambda: broker.state.store.queue_range("T", 0).max_offset == 12, what="all visible")
        assert (await client.ask(VIEW_MESSAGE, {"offset": 0})).code == 0
        assert len(await client.bodies("T")) == 12


@pytest.mark.parametrize("decision", [COMMIT, ROLL_BACK])
async def test_a_decided_transaction_is_answered_when_its_decision_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: int
) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH", syncFlushTimeout=60_000) as broker, wire(broker) as client:
        half = await client.send("T", b"half", TRAN_MSG="true", PGROUP="P")
        store = broker.state.store
        await until(lambda: store.flushed_offset == store.log.end, what="the half message on disk")
        awaited: list[int] = []
        tell = broker.state.durability.tell

        def watched(end: int, told: Callable[[ResponseCode], None], messages: int = 1) -> None:
            awaited.append(end)
            tell(end, told, messages)

        monkeypatch.setattr(broker.state.durability, "tell", watched)
        gate = Gate(broker, monkeypatch)
        fields = {
            "producerGroup": "P", "tranStateTableOffset": half.fields["queueOffset"], "msgId": "x",
            "commitLogOffset": int(half.fields["msgId"][16:], 16), "commitOrRollback": decision,
        }  # fmt: skip
        answer = await client.start(END_TRANSACTION, fields)
        await round_trips(client)
        assert not answer.done()

        gate.open()

        assert (await answer).code == 0
        assert awaited == [store.log.end], "the last record is the decision"
        assert store.queue_range("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0).max_offset == 1


async def test_a_sender_that_does_not_want_to_wait_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker, wire(broker) as client:
        gate = Gate(broker, monkeypatch)
        assert (await client.send("T", b"x", WAIT="false")).code == 0
        waiting = await client.start(SEND_V2, send_header("T", properties={"AWAIT": "false"}), b"y")
        await round_trips(client)
        assert not waiting.done()  # that property has another name
        gate.open()
        assert (await waiting).code == 0


async def test_a_flush_that_takes_too_long_says_so_and_keeps_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH", syncFlushTimeout=50) as broker, wire(broker) as client:
        gate = Gate(broker, monkeypatch)
        answer = await client.send("T", b"slow")
        assert (answer.code, answer.fields["queueOffset"]) == (10, "0")  # whole header: the message is stored
        gate.open()
        await until(lambda: broker.state.store.queue_range("T", 0).max_offset == 1, what="the message visible")
        assert await client.bodies("T") == [b"slow"]


async def test_a_failed_sync_is_never_answered_with_success_and_ends_all_writing(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    broker = Broker(configuration(tmp_path / "store", {"flushDiskType": "SYNC_FLUSH"}), disk=disk)
    await broker.start()
    async with wire(broker) as client:
        assert (await client.send("T", b"safe")).code == 0
        disk.faults.sync_fails = True
        assert (await client.send("T", b"unsafe")).code == 10
        disk.faults.sync_fails = False  # a retry that succeeds would prove nothing

        refused = await client.send("T", b"after")

        assert refused.code == 14
        assert "sync" in str(refused.remark)
        assert await client.bodies("T") == [b"safe"]  # reading goes on
    with pytest.raises(StoreFenced):
        await broker.stop()


async def _pop(client: Wire) -> Ask:
    return partial(LeaseClient(client).ask_pop, "T")


async def _ack(client: Wire) -> Ask:
    leasing = LeaseClient(client)
    return partial(leasing.ack, *await leasing.pop("T"))


async def _batch_ack(client: Wire) -> Ask:
    leasing = LeaseClient(client)
    return partial(leasing.ack_batch, await leasing.pop("T"))


async def _extension(client: Wire) -> Ask:
    leasing = LeaseClient(client)
    (leased,) = await leasing.pop("T")
    return partial(leasing.extend, leased, 90_000)


async def _commit(client: Wire) -> Ask:
    half = await client.send("T", b"half", TRAN_MSG="true", PGROUP="P")
    fields = {
        "producerGroup": "P", "tranStateTableOffset": half.fields["queueOffset"], "msgId": "x",
        "commitLogOffset": int(half.fields["msgId"][16:], 16), "commitOrRollback": COMMIT,
    }  # fmt: skip
    return partial(client.ask, END_TRANSACTION, fields)


async def _send_back(client: Wire) -> Ask:
    (message,) = await client.messages("T")
    return partial(client.ask, SEND_BACK, {"offset": message.commit_log_offset, "group": "LG", "delayLevel": 1})


async def _recall(client: Wire) -> Ask:
    receipt = await client.send("T", b"later", TIMER_DELAY_SEC="60", UNIQ_KEY="LATER")
    return partial(client.ask, RECALL, {"topic": "T", "recallHandle": receipt.fields["recallHandle"]})


@pytest.mark.parametrize("prepare", [_pop, _ack, _batch_ack, _extension, _commit, _send_back, _recall])
async def test_a_promise_whose_record_the_disk_failed_to_take_is_not_given(tmp_path: Path, prepare: Prepare) -> None:
    """In a soak a message was leased although the sync of its lease had failed: after the power cut, to another at once."""
    disk = FaultyDisk(tmp_path)
    broker = Broker(
        configuration(tmp_path / "store", {"flushDiskType": "SYNC_FLUSH", "recallMessageEnable": True}), disk=disk
    )
    await broker.start()
    async with wire(broker) as client:
        await client.send("T", b"m")
        ask = await prepare(client)
        disk.faults.sync_fails = True

        refused = await ask()

        assert refused.code == 14, refused
        assert "sync" in str(refused.remark)
    with pytest.raises(StoreFenced):
        await broker.stop()


async def test_a_pop_that_waited_gets_no_lease_that_the_disk_failed_to_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(tmp_path)
    broker = Broker(configuration(tmp_path / "store", {"flushDiskType": "SYNC_FLUSH"}), disk=disk)
    await broker.start()
    write = LeaseLog.write_checkpoint

    def write_to_a_bad_disk(log: LeaseLog, checkpoint: Checkpoint, *rest: int) -> int:
        disk.faults.sync_fails = True
        return write(log, checkpoint, *rest)

    async with wire(broker) as client:
        await client.send("T", b"first")
        assert len(await LeaseClient(client).pop("T")) == 1
        monkeypatch.setattr(LeaseLog, "write_checkpoint", write_to_a_bad_disk)
        held = await LeaseClient(client).hold_pop("T")
        await client.send("T", b"second")

        refused = await held

        assert refused.code == 14, refused
    with pytest.raises(StoreFenced):
        await broker.stop()


async def test_a_stopping_broker_answers_what_it_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        client_context = wire(broker)
        client = await client_context.__aenter__()
        gate = Gate(broker, monkeypatch)
        answers = [await client.start(SEND_V2, send_header("T"), b"%d" % i) for i in range(20)]
        await round_trips(client)
        asyncio.get_running_loop().call_later(0.1, gate.open)
    assert {(await answer).code for answer in answers} == {0}
    await client_context.__aexit__(None, None, None)
    async with running(tmp_path) as again, wire(again) as client:
        assert await client.bodies("T") == [b"%d" % i for i in range(20)]
