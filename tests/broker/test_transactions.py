"""Transactions: nothing is seen before it is committed, a decision counts once, and who does not decide is asked."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker import half_messages
from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.message.record import decode_record
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from tests.broker.kit import HEART_BEAT, PATIENCE_SECONDS, SEND_V2, Wire, running, send_header, wire
from tests.broker.test_full_disk import send_until_refused, taken_again
from tests.raw_client import until
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.transport.connection import Connection

pytestmark = pytest.mark.usefixtures("loops")

END_TRANSACTION, CHECK_STATE, RESUME_CHECK = 37, 39, 323
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
SERVICE_NOT_AVAILABLE = 14
HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)


async def _begin(client: Wire, topic: str = "Pay", body: bytes = b"half", **properties: str) -> Command:
    half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": body.decode(), **properties}
    answer = await client.ask(SEND_V2, send_header(topic, 0, half, {"sys_flag": 4}), body)
    assert answer.code == 0, answer
    return answer


def _decision(receipt: Command, decision: int, **changes: object) -> dict[str, object]:
    return {
        "producerGroup": "P",
        "tranStateTableOffset": receipt.fields["queueOffset"],
        "commitLogOffset": int(receipt.fields["msgId"][16:], 16),
        "commitOrRollback": decision,
        "msgId": receipt.fields["transactionId"],
        **changes,
    }


async def _end(client: Wire, receipt: Command, decision: int, **changes: object) -> Command:
    return await client.ask(END_TRANSACTION, _decision(receipt, decision, **changes))


async def test_a_half_message_is_seen_only_after_its_commit(client: Wire) -> None:
    receipt = await _begin(client, TAGS="new", KEYS="k1")
    assert await client.bodies("Pay") == []

    assert (await _end(client, receipt, COMMIT)).code == 0

    (message,) = await client.messages("Pay")
    assert (message.body, message.tags, message.keys, message.sys_flag & 0xC) == (b"half", "new", ["k1"], 8)
    assert message.prepared_transaction_offset == int(receipt.fields["msgId"][16:], 16)


async def test_a_decision_need_not_name_the_messages_id(client: Wire) -> None:
    decision = _decision(await _begin(client), COMMIT)
    del decision["msgId"]

    assert (await client.ask(END_TRANSACTION, decision)).code == 0
    assert await client.bodies("Pay") == [b"half"]


async def test_a_rolled_back_message_is_never_seen(client: Wire, broker: Broker) -> None:
    receipt = await _begin(client)
    assert (await _end(client, receipt, ROLLBACK)).code == 0
    assert (await _end(client, receipt, COMMIT)).code == 0  # too late: the decision stands
    assert await client.bodies("Pay") == []
    assert len(broker.state.half_messages) == 0


async def test_a_decision_counts_once(client: Wire) -> None:
    receipt = await _begin(client)
    for _ in range(3):
        await _end(client, receipt, COMMIT)
    assert await client.bodies("Pay") == [b"half"]


async def test_decisions_of_one_turn_share_an_op_message(client: Wire) -> None:
    receipts = [await _begin(client, body=f"half-{i}".encode()) for i in range(5)]
    decisions = [await client.start(END_TRANSACTION, _decision(receipt, COMMIT)) for receipt in receipts]
    await asyncio.gather(*decisions)
    ops = await client.messages(OP_TOPIC)
    assert sorted(int(o) for op in ops for o in op.body.decode().rstrip(",").split(",")) == [0, 1, 2, 3, 4]
    assert {op.tags for op in ops} == {"d"}


async def test_more_decisions_than_a_message_may_hold_are_recorded_in_several(tmp_path: Path) -> None:
    async with running(tmp_path, maxMessageSize=1000) as broker, wire(broker) as client:
        decided = list(range(400))  # as after a disk that was full for long
        broker.state.half_messages._to_be_recorded(decided)
        broker.state.half_messages.record_decisions()
        ops = [op.body for op in await client.messages(OP_TOPIC)]
        assert max(map(len, ops)) <= 1000
        assert b"".join(ops) == b"".join(b"%d," % number for number in decided)


async def test_a_decision_that_could_not_be_recorded_is_recorded_as_soon_as_there_is_room(
    client: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [await _begin(client, body=b"%d" % number) for number in range(3)]
    store = broker.state.store
    append = store.append

    def full(topic: str, *arguments: Any) -> Any:
        if topic == OP_TOPIC:
            raise StoreFull("no room")
        return append(topic, *arguments)

    monkeypatch.setattr(store, "append", full)
    for receipt in receipts[:2]:
        await _end(client, receipt, COMMIT)
    monkeypatch.undo()
    await until(lambda: store.queue_range(OP_TOPIC, 0).max_offset == 1, what="the record of both")
    await _end(client, receipts[2], COMMIT)
    await until(lambda: store.queue_range(OP_TOPIC, 0).max_offset == 2, what="the record of the third")
    assert [op.body for op in await client.messages(OP_TOPIC)] == [b"0,1,", b"2,"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_roll_back_that_a_full_disk_forgets_is_not_answered_with_success(tmp_path: Path, flush: str) -> None:
    disk = FaultyDisk(tmp_path / "store")
    settings: dict[str, Any] = {"flushDiskType": flush, "mappedFileSizeCommitLog": 100_000, "timerWheelEnable": False}
    async with running(tmp_path / "store", disk=disk, **settings) as broker, wire(broker) as client:
        receipts = [await _begin(client, body=b"%d" % number) for number in range(4)]
        disk.faults.space_left = 0
        for size in (1000, 1):
            await send_until_refused(client, size)
        refused = {
            int(receipt.fields["queueOffset"])
            for receipt in receipts
            if (await _end(client, receipt, ROLLBACK)).code == SERVICE_NOT_AVAILABLE
        }
        assert refused
        if flush == "SYNC_FLUSH":
            disk.power_cut_image(tmp_path / "image")
        else:
            shutil.copytree(tmp_path / "store", tmp_path / "image")
        disk.faults.space_left = None
        await taken_again(client)
        assert {(await _end(client, receipt, ROLLBACK)).code for receipt in receipts} == {0}
    async with running(tmp_path / "image", **settings) as broker:
        assert set(broker.state.half_messages.undecided) == refused


@pytest.mark.parametrize(
    "forgery",
    [{"producerGroup": "Other"}, {"tranStateTableOffset": 7}, {"commitLogOffset": 1}, {"commitLogOffset": 1 << 60}],
    ids=["group", "queue offset", "log offset", "log offset beyond"],
)
async def test_a_forged_decision_is_refused_and_changes_nothing(
    client: Wire, broker: Broker, forgery: dict[str, object]
) -> None:
    receipt = await _begin(client)
    assert (await _end(client, receipt, COMMIT, **forgery)).code == 1
    assert await client.bodies("Pay") == []
    assert len(broker.state.half_messages) == 1


async def test_a_decision_that_is_none_is_refused(client: Wire) -> None:
    receipt = await _begin(client)
    assert (await _end(client, receipt, 5)).code == 1


async def test_a_committed_message_with_a_delay_waits_for_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "store", clock=clock) as broker, wire(broker) as client:
        receipt = await _begin(client, DELAY="3")
        await _end(client, receipt, COMMIT)
        assert await client.bodies("Pay") == []
        held = await client.hold("Pay")
        clock.advance(seconds=10)
        assert decode_record((await asyncio.wait_for(held, PATIENCE_SECONDS)).body).body == b"half"


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    async with running(tmp_path / "store", rejectTransactionMessage="true") as broker, wire(broker) as client:
        refused = await client.send("Pay", b"x", TRAN_MSG="true", PGROUP="P")
        assert refused.code == 16
        assert await client.bodies(HALF_TOPIC) == []


async def test_undecided_and_decided_transactions_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        first, second, third = [await _begin(client, body=f"half-{i}".encode()) for i in range(3)]
        await _end(client, second, COMMIT)
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        assert len(broker.state.half_messages) == 2
        await _end(client, second, COMMIT)
        await _end(client, third, ROLLBACK)
        await _end(client, first, COMMIT)
        assert await client.bodies("Pay") == [b"half-1", b"half-0"]
    async with running(tmp_path / "store") as broker:
        assert len(broker.state.half_messages) == 0


class _Asked:
    """A producer that remembers what it is asked."""

    def __init__(self, broker: Broker) -> None:
        assert broker.address is not None
        self.questions: asyncio.Queue[Command] = asyncio.Queue()
        self._address = broker.address
        self._pool = Pool({CHECK_STATE: self._note})

    async def join(self) -> None:
        from orbitmq.protocol.command import Command

        beat = {"clientID": "asked", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
        await self._pool.call(self._address, Command(HEART_BEAT, body=json.dumps(beat).encode()), PATIENCE_SECONDS)

    async def close(self) -> None:
        await self._pool.close()

    async def _note(self, request: Command, connection: Connection) -> None:
        self.questions.put_nowait(request)


async def test_decisions_are_left_behind_though_there_is_always_an_open_transaction(tmp_path: Path) -> None:
    async with running(tmp_path, timerWheelEnable=False) as broker, wire(broker) as client:
        open_one = await _begin(client)
        for _ in range(20):
            next_one = await _begin(client)
            assert (await _end(client, open_one, COMMIT)).code == 0
            open_one = next_one
        later = await _begin(client)
        assert (await _end(client, later, ROLLBACK)).code == 0
        await broker.state.half_messages.check_round()
        offsets = broker.state.offsets
        assert offsets.get(half_messages.GROUP, HALF_TOPIC, 0) == 20
        (op,) = await client.messages(OP_TOPIC, 0, offsets.get(half_messages.GROUP, OP_TOPIC, 0) or 0)
        assert op.body == b"21,"  # of what is behind the open one
    async with running(tmp_path, timerWheelEnable=False) as broker, wire(broker) as client:
        assert list(broker.state.half_messages.undecided) == [20]
        assert (await _end(client, open_one, COMMIT)).code == 0
        await broker.state.half_messages.check_round()
        end = broker.state.store.queue_range(OP_TOPIC, 0).max_offset
        assert broker.state.offsets.get(half_messages.GROUP, OP_TOPIC, 0) == end


async def test_a_producer_that_does_not_decide_is_asked(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "store", clock=clock) as broker, wire(broker) as client:
        producer = _Asked(broker)
        await producer.join()
        receipt = await _begin(client)
        await broker.state.half_messages.check_round()
        assert producer.questions.empty()  # it still has time

        clock.advance(seconds=7)
        await broker.state.half_messages.check_round()

        question = await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        asked_about = decode_record(question.body)
        assert (asked_about.topic, asked_about.body) == ("Pay", b"half")
        assert question.fields["tranStateTableOffset"] == receipt.fields["queueOffset"]
        assert question.fields["commitLogOffset"] == str(int(receipt.fields["msgId"][16:], 16))
        assert asked_about.properties["TRANSACTION_CHECK_TIMES"] == "1"
        await broker.state.half_messages.check_round()
        question = await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        assert decode_record(question.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
        await client.ask(
            END_TRANSACTION,
            _decision(receipt, COMMIT, fromTransactionCheck="true"),
        )
        assert await client.bodies("Pay") == [b"half"]
        await producer.close()


@pytest.mark.parametrize(
    ("seconds", "left_alone", "asked_after"),
    [("60", 30, 31), ("1", 1, 1), ("many", 5, 2), ("9" * 5000, 5, 2)],
    ids=["longer", "shorter", "no number", "too large"],
)
async def test_a_message_says_how_long_it_is_left_alone(
    tmp_path: Path, seconds: str, left_alone: int, asked_after: int
) -> None:
    """Longer or shorter than `transactionTimeOut`, six seconds; which counts where the message says nothing to the point."""
    clock = ManualClock()
    async with running(tmp_path / "store", clock=clock) as broker, wire(broker) as client:
        producer = _Asked(broker)
        await producer.join()
        await _begin(client, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        clock.advance(seconds=left_alone)
        await broker.state.half_messages.check_round()
        assert producer.questions.empty()
        clock.advance(seconds=asked_after)
        await broker.state.half_messages.check_round()
        await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        await producer.close()


async def test_what_nobody_decides_is_forgotten_when_its_file_has_expired(client: Wire, broker: Broker) -> None:
    halves, log = broker.state.half_messages, broker.state.store.log
    await _begin(client)
    await halves.check_round()  # now its group is known, of which nobody is there
    while len(log.files.segments) < 2:
        assert (await client.send("T", b"x" * 250_000)).code == 0
    last = await _begin(client, body=b"last")
    log.files.delete_oldest()

    await halves.check_round()

    assert list(halves.undecided) == [1]
    assert broker.state.offsets.get(half_messages.GROUP, HALF_TOPIC, 0) == 1
    assert (await _end(client, last, COMMIT)).code == 0
    assert await client.bodies("Pay") == [b"last"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_a_decision_about_a_message_whose_file_has_expired_is_refused_and_changes_nothing(
    client: Wire, broker: Broker, decision: int
) -> None:
    log = broker.state.store.log
    expired, decided = await _begin(client), await _begin(client, body=b"decided")
    assert (await _end(client, decided, COMMIT)).code == 0
    while len(log.files.segments) < 2:
        assert (await client.send("T", b"x" * 250_000)).code == 0
    await broker.state.half_messages.check_round()
    log.files.delete_oldest()
    end = log.end

    for receipt in (expired, decided):
        refused = await _end(client, receipt, decision)
        assert (refused.code, "Find prepared transaction message failed" in str(refused.remark)) == (1, True)

    await broker.state.half_messages.check_round()
    assert (log.end, len(broker.state.half_messages)) == (end, 0)
    later = await _begin(client, body=b"later")
    assert (await _end(client, later, COMMIT)).code == 0
    assert (await client.bodies("Pay", 0, 1)) == [b"later"]


async def test_what_is_in_the_write_pool_still_is_not_taken_for_expired(tmp_path: Path) -> None:
    pool: dict[str, Any] = {
        "transientStorePoolEnable": "true",
        "transientStorePoolSize": 2,
        "commitIntervalCommitLog": 3_600_000,
    }
    async with running(tmp_path, **pool) as broker, wire(broker) as client:
        await _begin(client)
        assert broker.state.store.log.readable_end == 0
        await broker.state.half_messages.check_round()
        assert len(broker.state.half_messages) == 1


@pytest.mark.parametrize("checks", ["\N{SUPERSCRIPT TWO}", "9" * 5000], ids=["no number", "too large"])
async def test_a_count_of_checks_that_is_none_keeps_no_broker_from_starting(tmp_path: Path, checks: str) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        receipt = await _begin(client, TRANSACTION_CHECK_TIMES=checks)
    async with running(tmp_path) as broker, wire(broker) as client:
        assert len(broker.state.half_messages) == 1
        assert (await _end(client, receipt, COMMIT)).code == 0
        assert await client.bodies("Pay") == [b"half"]


async def test_after_enough_questions_the_message_is_put_aside(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "store", clock=clock, transactionCheckMax=2) as broker, wire(broker) as client:
        producer = _Asked(broker)
        await producer.join()
        await _begin(client)
        for _ in range(4):
            clock.advance(seconds=31)
            await broker.state.half_messages.check_round()
        await until(lambda: producer.questions.qsize() >= 2, what="both questions")
        (given_up,) = await client.messages(DISCARDED_TOPIC)
        assert (given_up.body, given_up.properties["REAL_TOPIC"], given_up.properties["PGROUP"]) == (
            b"half",
            "Pay",
            "P",
        )
        assert producer.questions.qsize() == 2
        assert await client.bodies("Pay") == []
        assert len(broker.state.half_messages) == 0
        await producer.close()


async def test_what_was_put_aside_is_asked_about_anew_when_an_operator_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    once: dict[str, Any] = {"transactionCheckMax": 1}
    async with running(tmp_path / "store", clock=clock, **once) as broker, wire(broker) as client:
        producer = _Asked(broker)
        await producer.join()
        await _begin(client, TAGS="new")
        for _ in range(2):
            clock.advance(seconds=31)
            await broker.state.half_messages.check_round()
        await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        (given_up,) = await client.messages(DISCARDED_TOPIC)

        assert (await client.ask(RESUME_CHECK, {"topic": "Pay", "msgId": given_up.offset_id})).code == 0
        await producer.close()

    async with running(tmp_path / "store", clock=clock, **once) as broker, wire(broker) as client:
        producer = _Asked(broker)
        await producer.join()
        assert broker.state.half_messages.by_topic() == {"Pay": 1}
        clock.advance(seconds=31)
        await broker.state.half_messages.check_round()
        question = await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        decision = {name: question.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")}
        await client.ask(END_TRANSACTION, {"producerGroup": "P", "commitOrRollback": COMMIT, **decision})
        (message,) = await client.messages("Pay")
        assert (message.body, message.tags, message.born_at_ms) == (b"half", "new", given_up.born_at_ms)
        await producer.close()


@pytest.mark.parametrize(("message_id", "code"), [("open", 1), ("beyond", 1), ("no id", 29)])
async def test_only_what_was_put_aside_is_taken_up_again(
    client: Wire, broker: Broker, message_id: str, code: int
) -> None:
    receipt = await _begin(client)
    ids = {"open": receipt.fields["msgId"], "beyond": "00" * 12 + "7" * 8}
    answer = await client.ask(RESUME_CHECK, {"topic": "Pay", "msgId": ids.get(message_id, message_id)})
    assert answer.code == code, answer
    assert list(broker.state.half_messages.undecided) == [0]


async def test_thousands_of_questions_starve_neither_sends_nor_a_slow_producer(tmp_path: Path) -> None:
    """`python -m benchmarks transactions` does this with 100,000."""
    clock = ManualClock()
    asked: list[str] = []

    async def decide_later(request: Command, connection: Connection) -> None:
        asked.append(request.fields["transactionId"])

    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        for number in range(3000):
            text = f"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01{number}\x02"
            broker.state.sending.put("Pay", 0, b"x" * 2000, text, 0, b"\x7f\0\0\1\0\0\0\1", 0, 4)
        broker.state.store.dispatch()
        assert broker.address is not None
        pool = Pool({CHECK_STATE: decide_later})
        producer = await pool.connection(broker.address)
        beat = {"clientID": "p", "consumerDataSet": [], "producerDataSet": [{"groupName": "P"}]}
        await producer.start_call(Command(HEART_BEAT, body=json.dumps(beat).encode()), PATIENCE_SECONDS)
        clock.advance(minutes=1)
        (registered,) = broker.state.clients.producers("P")
        most_unsent = 0

        round_of_questions = asyncio.create_task(broker.state.half_messages.check_round())
        while not round_of_questions.done():
            assert (await client.send("Plain", b"x")).code == 0  # answered in the middle of it
            unsent = registered.connection._transport.get_write_buffer_size()
            most_unsent = max(most_unsent, unsent)
        await until(lambda: len(asked) == 3000, what="all questions")

        assert len(await client.bodies("Plain")) > 5
        assert most_unsent < 4 << 20  # of six megabytes of questions
        assert len(set(asked)) == 3000
        await pool.close()


async def test_a_producer_that_reads_nothing_keeps_no_other_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_messages, "_LONGEST_ROUND_SECONDS", 0.1)
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client, wire(broker) as deaf:
        beat = {"clientID": "deaf", "consumerDataSet": [], "producerDataSet": [{"groupName": "Deaf"}]}
        assert (await deaf.ask(HEART_BEAT, None, json.dumps(beat).encode())).code == 0
        (registered,) = broker.state.clients.producers("Deaf")
        registered.connection.pause_writing()
        for number in range(30):
            await _begin(client, body=f"deaf-{number}".encode(), PGROUP="Deaf")
        await _begin(client)
        producer = _Asked(broker)
        await producer.join()
        clock.advance(seconds=7)

        await broker.state.half_messages.check_round()

        question = await asyncio.wait_for(producer.questions.get(), PATIENCE_SECONDS)
        assert question.fields["transactionId"] == "half"
        assert [half.checks for half in broker.state.half_messages.undecided.values()] == [0] * 30 + [1]
        registered.connection.resume_writing()
        await broker.state.half_messages.check_round()
        assert [half.checks for half in broker.state.half_messages.undecided.values()] == [1] * 30 + [2]
        await producer.close()
