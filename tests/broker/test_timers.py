"""Timer messages on a clock that stands still until it is told to move."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.storage.timer_store import Timer
from orbitmq.storage.timer_wheel import SLOTS
from tests.broker.kit import Wire, running, wire
from tests.broker.test_delays import killed as killed_copy
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker

pytestmark = pytest.mark.usefixtures("loops")

WHEEL_TOPIC = "rmq_sys_wheel_timer"
NOW_MS = 1_700_000_000_000
RECALL, TIMER_CHECK_POINT, TIMER_METRICS, RUNTIME_INFO = 370, 60, 61, 28
ILLEGAL, FORBIDDEN, ILLEGAL_OPERATION, SYSTEM_ERROR = 13, 16, 604, 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock, **SMALL) as running_broker:
        yield running_broker


SMALL: dict[str, Any] = {"mappedFileSizeTimerLog": 52 * 100, "recallMessageEnable": "true"}


def as_any(properties: dict[str, str]) -> dict[str, Any]:
    """So that they can be given by name."""
    return dict(properties)


async def on_the_wheel(broker: Broker) -> None:
    """Wait until every timer message that was sent is on the wheel."""
    timers = broker.state.timers
    assert timers is not None
    await until(lambda: timers.queue_behind == 0, what="putting on the wheel")


async def delivered(broker: Broker, client: Wire, count: int, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    await until(lambda: broker.state.store.queue_range(topic, queue_id).max_offset >= count, what=f"{count} delivered")
    return await client.bodies(topic, queue_id)


async def all_fired(broker: Broker, clock: ManualClock) -> None:
    """Everything whose time is over has been delivered."""
    timers = broker.state.timers
    assert timers is not None
    await on_the_wheel(broker)
    while timers.turn() == 0:
        pass
    assert timers.wheel.read_tick >= clock.now_ms() // timers.wheel.precision_ms
    broker.state.store.dispatch()


@pytest.mark.parametrize(
    ("request_for", "fires_after_ms"),
    [
        ({"TIMER_DELAY_SEC": "10"}, 10_000),
        ({"TIMER_DELAY_MS": "2500"}, 3000),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 7001)}, 8000),
        ({"TIMER_DELAY_SEC": "10", "TIMER_DELIVER_MS": "1"}, 10_000),
        ({"TIMER_DELAY_MS": "1", "DELAY": "0"}, 1000),
    ],
)
async def test_a_timer_message_is_seen_when_its_second_is_over_and_not_before(
    client: Wire, broker: Broker, clock: ManualClock, request_for: dict[str, Any], fires_after_ms: int
) -> None:
    answer = await client.send("T", b"later", 2, TAGS="tag", UNIQ_KEY="K1", **request_for)
    assert (answer.code, answer.fields["queueId"]) == (0, "2")

    clock.advance(ms=fires_after_ms - 1)
    await all_fired(broker, clock)
    assert await client.bodies("T", 2) == []
    clock.advance(ms=1)

    assert await delivered(broker, client, 1, "T", 2) == [b"later"]
    (message,) = await client.messages("T", 2)
    told = message.properties
    assert (told["TAGS"], told["REAL_TOPIC"], told["REAL_QID"], told["UNIQ_KEY"]) == ("tag", "T", "2", "K1")
    assert (told["TIMER_OUT_MS"], told["TIMER_ENQUEUE_MS"]) == (str(NOW_MS + fires_after_ms - 1000), str(NOW_MS))
    assert told["TIMER_DEQUEUE_MS"] == str(NOW_MS + fires_after_ms)
    assert (message.born_at_ms, message.topic) == (NOW_MS, "T")


@pytest.mark.parametrize(
    ("key", "value"),
    [("TIMER_DELAY_SEC", "-5"), ("TIMER_DELAY_MS", "0"), ("TIMER_DELIVER_MS", "12"), ("TIMER_DELIVER_MS", "-1")],
)
async def test_a_moment_that_has_passed_means_now(client: Wire, key: str, value: str) -> None:
    assert (await client.send("T", b"now", **as_any({key: value}))).code == 0

    assert await client.bodies("T") == [b"now"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("TIMER_DELAY_SEC", "259201"),
        ("TIMER_DELAY_MS", "259200001"),
        ("TIMER_DELIVER_MS", str(NOW_MS + 259_200_001)),
        ("TIMER_DELAY_SEC", "x"),
        ("TIMER_DELAY_SEC", "1.5"),
        ("TIMER_DELAY_SEC", "٣"),
        ("TIMER_DELAY_MS", "9223372036854775808"),
        pytest.param("TIMER_DELAY_SEC", "9" * 5000, id="digits without end"),
    ],
)
async def test_a_delay_that_cannot_be_is_refused_and_nothing_is_stored(
    client: Wire, broker: Broker, key: str, value: str
) -> None:
    answer = await client.send("T", b"x", **as_any({key: value}))

    assert answer.code == ILLEGAL
    assert "timer message illegal" in str(answer.remark)
    assert broker.state.store.log.end == 0
    half = await client.send("T", b"x", TRAN_MSG="true", PGROUP="P", **as_any({key: value}))
    assert half.code == ILLEGAL


async def test_messages_of_one_moment_keep_their_order_whatever_the_file_they_are_in(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    wanted = [b"%d" % i for i in range(150)]  # the timer log rolls after a hundred
    for body in wanted:
        assert (await client.send("T", body, TIMER_DELAY_SEC="5")).code == 0
    early = await client.send("T", b"early", TIMER_DELAY_SEC="2")
    assert early.code == 0

    clock.advance(seconds=3)
    assert await delivered(broker, client, 1) == [b"early"]
    clock.advance(seconds=3)

    assert await delivered(broker, client, 151) == [b"early", *wanted]


@pytest.mark.parametrize("precision_ms", [100, 200, 500])
async def test_a_finer_wheel_fires_when_its_own_slots_are_over_also_in_turns_and_after_a_restart(
    tmp_path: Path, clock: ManualClock, precision_ms: int
) -> None:
    changes = {**SMALL, "timerPrecisionMs": precision_ms, "timerRollWindowSlot": 10}

    async def step(broker: Broker) -> None:
        clock.advance(ms=precision_ms)
        await all_fired(broker, clock)

    delays_ms = {b"at once": 1, b"one": precision_ms, b"next": precision_ms + 1, b"in turns": 35 * precision_ms - 1}
    due_slots = {b"at once": 1, b"one": 1, b"next": 2, b"in turns": 35}
    seen: dict[bytes, int] = {}
    slot = 0
    for stop in (1, 20, 40):
        async with running(tmp_path, clock=clock, **changes) as broker, wire(broker) as client:
            if slot == 0:
                for body, delay_ms in delays_ms.items():
                    assert (await client.send("T", body, TIMER_DELAY_MS=str(delay_ms))).code == 0
                regretted = await client.send("T", b"regretted", TIMER_DELAY_MS=str(35 * precision_ms))
                await on_the_wheel(broker)
            while slot < stop:
                await step(broker)
                slot += 1
                for body in await client.bodies("T"):
                    seen.setdefault(body, slot)
                if slot == 25:
                    handle = regretted.fields["recallHandle"]
                    assert (await client.ask(RECALL, {"topic": "T", "recallHandle": handle})).code == 0
            assert len(await client.bodies("T")) == len(seen)
            timers = broker.state.timers
            assert timers is not None
            assert timers.wheel.mark().read_until_ms == clock.now_ms()
            waiting = timers.counts.total()
    assert (seen, waiting) == (due_slots, 0)


async def test_a_level_beats_a_timer(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"x", DELAY="1", TIMER_DELAY_SEC="1000")

    clock.advance(seconds=1)

    assert await delivered(broker, client, 1) == [b"x"]
    assert broker.state.store.queue_range(WHEEL_TOPIC, 0).max_offset == 0


async def test_a_way_longer_than_the_window_is_gone_in_turns(tmp_path: Path, clock: ManualClock) -> None:
    changes = {**SMALL, "timerRollWindowSlot": 10}
    async with running(tmp_path, clock=clock, **changes) as broker, wire(broker) as client:
        await client.send("T", b"far", TIMER_DELAY_SEC="35", TIMER_ROLL_TIMES="9" * 5000)  # which is no number of turns
        await client.send("T", b"gone", TIMER_DELAY_SEC="35", UNIQ_KEY="GONE")
        handle = (await client.send("T", b"gone", TIMER_DELAY_SEC="35", UNIQ_KEY="GONE2")).fields["recallHandle"]
        for _ in range(34):
            clock.advance(seconds=1)
            await all_fired(broker, clock)
            if clock.now_ms() == NOW_MS + 20_000:
                assert (await client.ask(RECALL, {"topic": "T", "recallHandle": handle})).code == 0
            assert await client.bodies("T") == []
        clock.advance(seconds=1)

        await all_fired(broker, clock)
        # In which order, nobody promises: each began its last turn when it could.
        came = {message.body: message for message in await client.messages("T")}
        assert came.keys() == {b"far", b"gone"}
        assert int(came[b"far"].properties["TIMER_ROLL_TIMES"]) >= 2
        timers = broker.state.timers
        assert timers is not None
        assert timers.counts.total() == 0


async def test_a_timer_outlives_the_file_that_it_was_sent_to(tmp_path: Path, clock: ManualClock) -> None:
    """Where files are kept for less time than the wheel's window, a message is put on the wheel again before its file expires."""
    async with running(tmp_path, clock=clock, **SMALL, fileReservedTime=24) as broker, wire(broker) as client:
        assert (await client.send("T", b"far", TIMER_DELAY_SEC=str(40 * 3600))).code == 0
        log = broker.state.store.log
        while len(log.files.segments) < 2:
            assert (await client.send("Other", b"x" * 250_000)).code == 0
        for hour in range(40):
            if hour == 24:
                log.files.delete_oldest()
            assert broker.state.store.queue_range("T", 0).max_offset == 0
            clock.advance(seconds=3600)
            await all_fired(broker, clock)

        assert await delivered(broker, client, 1) == [b"far"]


async def test_what_waited_for_the_wheel_for_weeks_loses_no_slot_to_what_waits_beside_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Two moments that are two turns of the wheel apart have one slot. The first of them fires before the second is put."""
    stopped: dict[str, Any] = {
        **SMALL,
        "fileReservedTime": 1000,
        "timerStopEnqueue": "true",
        "timerStopDequeue": "true",
    }
    days = 13
    async with running(tmp_path, clock=clock, **stopped) as broker, wire(broker) as client:
        assert (await client.send("T", b"early", TIMER_DELAY_SEC="5")).code == 0
    clock.advance(seconds=days * 86_400)
    async with running(tmp_path, clock=clock, **stopped) as broker, wire(broker) as client:
        delay = SLOTS - days * 86_400 + 5
        assert (await client.send("T", b"late", TIMER_DELAY_SEC=str(delay))).code == 0
    async with running(tmp_path, clock=clock, **SMALL, fileReservedTime=1000) as broker, wire(broker) as client:
        assert await delivered(broker, client, 1) == [b"early"]
        clock.advance(seconds=delay + 1)
        assert await delivered(broker, client, 2) == [b"early", b"late"]


async def test_a_recalled_message_never_comes(client: Wire, broker: Broker, clock: ManualClock) -> None:
    receipt = await client.send("T", b"regretted", TIMER_DELAY_SEC="5", UNIQ_KEY="K1")
    await client.send("T", b"kept", TIMER_DELAY_SEC="5", UNIQ_KEY="K2")
    handle = receipt.fields["recallHandle"]
    assert base64.urlsafe_b64decode(handle).decode() == f"v1 T broker-a {NOW_MS + 4001} K1"

    answer = await client.ask(RECALL, {"producerGroup": "P", "topic": "T", "recallHandle": handle})
    assert (answer.code, answer.fields["msgId"]) == (0, "K1")
    clock.advance(seconds=6)

    await all_fired(broker, clock)
    assert await client.bodies("T") == [b"kept"]
    counts = json.loads((await client.ask(TIMER_METRICS)).body)["timingCount"]
    assert counts["T"]["count"] == 0


async def test_a_message_can_be_recalled_only_by_one_for_the_same_topic(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    """A recall is an ordinary message, and may be sent as one, as in Java; but not across topics."""
    due: dict[str, Any] = {"TIMER_DELIVER_MS": str(NOW_MS + 5000)}
    for topic, key in (("T", "K1"), ("T", "K2"), ("Mine", "K1"), ("%RETRY%g+t", "K3")):
        broker.state.topics.create_internal(topic, 1)
        assert (await client.send(topic, f"{topic} {key}".encode(), UNIQ_KEY=key, **due)).code == 0
    for recalled in ("T+K1", "Mine+K1", "%RETRY%g+t+K3"):
        for topic in ("Mine", "%RETRY%g"):
            forged: dict[str, Any] = {"TIMER_DEL_UNIQKEY": recalled, "REAL_TOPIC": recalled.rpartition("+")[0], **due}
            broker.state.topics.create_internal(topic, 1)
            assert (await client.send(topic, b"0", **forged)).code == 0
    assert (await client.send("T", b"0", TIMER_DEL_UNIQKEY="T+K2", **due)).code == 0
    clock.advance(seconds=6)

    await all_fired(broker, clock)

    assert await client.bodies("T") == [b"T K1"]
    assert await client.bodies("%RETRY%g+t") == [b"%RETRY%g+t K3"]
    assert await client.bodies("Mine") == await client.bodies("%RETRY%g") == []
    counts = json.loads((await client.ask(TIMER_METRICS)).body)["timingCount"]
    assert [counts[topic]["count"] for topic in ("T", "Mine", "%RETRY%g+t")] == [0, 0, 0]


async def test_what_cannot_be_recalled_is_told_so_and_changes_nothing(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    receipt = await client.send("T", b"x", TIMER_DELAY_SEC="5", UNIQ_KEY="K1")
    handle = receipt.fields["recallHandle"]
    end = broker.state.store.log.end

    def forged(*parts: object) -> str:
        return base64.urlsafe_b64encode(" ".join(str(part) for part in parts).encode()).decode()

    for topic, wrong, code in (
        ("T", "no base64!", ILLEGAL_OPERATION),
        ("T", "", ILLEGAL_OPERATION),
        ("T", forged("v2", "T", "broker-a", NOW_MS + 4001, "K1"), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-a", NOW_MS + 4001), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-b", NOW_MS + 4001, "K1"), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-a", "soon", "K1"), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-a", NOW_MS, "K1"), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-a", NOW_MS + 10**15, "K1"), ILLEGAL_OPERATION),
        ("T", forged("v1", "T", "broker-a", NOW_MS + 4001, "K\x021"), ILLEGAL_OPERATION),
        ("TBW102", handle, ILLEGAL_OPERATION),
        ("Nowhere", handle, 17),
    ):
        answer = await client.ask(RECALL, {"topic": topic, "recallHandle": wrong})
        assert answer.code == code, (wrong, answer)
        assert answer.fields["MSG_REGION"] == "DefaultRegion"  # without it, Java's client traces nothing
    assert broker.state.store.log.end == end
    clock.advance(seconds=5)
    assert await delivered(broker, client, 1) == [b"x"]
    assert (await client.ask(RECALL, {"topic": "T", "recallHandle": handle})).code == ILLEGAL_OPERATION


async def test_a_message_in_the_write_pool_can_be_recalled_too(tmp_path: Path, clock: ManualClock) -> None:
    """Its record cannot be read yet when its sender is answered."""
    pool: dict[str, Any] = {
        "transientStorePoolEnable": "true",
        "transientStorePoolSize": 2,
        "commitIntervalCommitLog": 3_600_000,
    }
    async with running(tmp_path / "pool", clock=clock, **SMALL, **pool) as broker, wire(broker) as client:
        receipt = await client.send("T", b"x", TIMER_DELAY_SEC="5", UNIQ_KEY="POOLED")
        assert broker.state.store.log.readable_end == 0
        handle = receipt.fields["recallHandle"]
        assert (await client.ask(RECALL, {"topic": "T", "recallHandle": handle})).code == 0


async def test_recall_is_an_offer_of_the_operator(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, mappedFileSizeTimerLog=52 * 100) as broker, wire(broker) as client:
        handle = (await client.send("T", b"x", TIMER_DELAY_SEC="5")).fields["recallHandle"]

        assert (await client.ask(RECALL, {"topic": "T", "recallHandle": handle})).code == FORBIDDEN


@pytest.mark.parametrize(("allowed", "code"), [("true", 0), ("false", 14)])
async def test_a_broker_that_takes_no_messages_lets_them_be_recalled_unless_told_otherwise(
    tmp_path: Path, clock: ManualClock, allowed: str, code: int
) -> None:
    """As while it is emptied, before it is taken out of the cluster."""
    changes = {**SMALL, "allowRecallWhenBrokerNotWriteable": allowed}
    async with running(tmp_path, clock=clock, **changes) as broker, wire(broker) as client:
        handle = (await client.send("T", b"x", TIMER_DELAY_SEC="5", UNIQ_KEY="K")).fields["recallHandle"]
        assert (await client.ask(25, None, b"brokerPermission=4")).code == 0
        assert (await client.send("T", b"y")).code == FORBIDDEN

        answer = await client.ask(RECALL, {"topic": "T", "recallHandle": handle})

        assert answer.code == code, answer.remark
        clock.advance(seconds=6)
        await all_fired(broker, clock)
        assert await client.bodies("T") == ([] if code == 0 else [b"x"])


async def test_a_broker_without_a_wheel_refuses_timers(tmp_path: Path) -> None:
    async with running(tmp_path, timerWheelEnable="false") as broker, wire(broker) as client:
        answer = await client.send("T", b"x", TIMER_DELAY_SEC="5")

        assert answer.code == SYSTEM_ERROR
        assert "timerWheelEnable is false" in str(answer.remark)
        assert (await client.ask(TIMER_METRICS)).code == SYSTEM_ERROR
    assert not (tmp_path / "timerwheel").exists()


async def test_a_moment_may_be_full(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, **SMALL, timerCongestNumEachSlot=2) as broker, wire(broker) as client:
        for _ in range(20):
            await client.send("T", b"x", TIMER_DELAY_SEC="5")
            await on_the_wheel(broker)
        refused = await client.send("T", b"x", TIMER_DELAY_SEC="5")
        assert (refused.code, (await client.send("T", b"x", TIMER_DELAY_SEC="6")).code) == (SYSTEM_ERROR, 0)
        assert "flow control" in str(refused.remark)
        timers = broker.state.timers
        assert timers is not None
        assert timers.counts.total() <= 5  # twice the limit, and the other moment's


async def test_a_message_can_be_recalled_from_a_moment_that_is_full(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, **SMALL, timerCongestNumEachSlot=2) as broker, wire(broker) as client:
        sent = [
            await client.send("T", b"%d" % number, TIMER_DELAY_SEC="5", UNIQ_KEY=f"K{number}") for number in range(4)
        ]
        assert {answer.code for answer in sent} == {0}
        await on_the_wheel(broker)
        assert (await client.send("T", b"too many", TIMER_DELAY_SEC="5")).code == SYSTEM_ERROR

        for answer in sent[1:]:
            recalled = await client.ask(RECALL, {"topic": "T", "recallHandle": answer.fields["recallHandle"]})
            assert recalled.code == 0, recalled

        clock.advance(seconds=6)
        await all_fired(broker, clock)
        assert await client.bodies("T") == [b"0"]


async def test_a_committed_transaction_waits_for_its_moment(client: Wire, broker: Broker, clock: ManualClock) -> None:
    half = await client.send("T", b"half", TIMER_DELAY_SEC="5", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="K")
    clock.advance(seconds=10)
    decision = {
        "producerGroup": "P",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": 8,
        "msgId": "K",
    }
    assert (await client.ask(37, decision)).code == 0
    await all_fired(broker, clock)
    assert await client.bodies("T") == []

    clock.advance(seconds=5)

    assert await delivered(broker, client, 1) == [b"half"]


async def test_a_message_late_for_the_wheel_is_delivered_at_once(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    await client.send("T", b"something waits", TIMER_DELAY_SEC="500")
    await on_the_wheel(broker)
    await client.ask(25, None, b"timerStopEnqueue=true")
    await client.send("T", b"late", TIMER_DELAY_SEC="5")
    clock.advance(seconds=60)
    timers = broker.state.timers
    assert timers is not None
    await until(lambda: timers.wheel.read_tick == clock.now_ms() // 1000, what="passing the message's moment")
    await client.ask(25, None, b"timerStopEnqueue=false")

    assert await delivered(broker, client, 1) == [b"late"]
    (message,) = await client.messages("T")
    assert message.properties["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


async def test_a_clock_set_back_makes_nothing_early(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"first", TIMER_DELAY_SEC="100")
    clock.advance(seconds=50)
    await all_fired(broker, clock)
    clock.advance(seconds=-20)
    await client.send("T", b"second", TIMER_DELAY_SEC="5")  # its slot has been passed already
    await on_the_wheel(broker)
    clock.advance(seconds=4)
    timers = broker.state.timers
    assert timers is not None
    assert timers.turn() == pytest.approx(0.1)
    assert await client.bodies("T") == []

    clock.advance(seconds=66)

    assert sorted(await delivered(broker, client, 2)) == [b"first", b"second"]


async def test_messages_wait_for_a_store_that_takes_them_again(
    client: Wire, broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        await client.send("T", b"%d" % i, TIMER_DELAY_SEC="1")
    await on_the_wheel(broker)
    append = broker.state.store.append

    def full(*arguments: object) -> object:
        raise StoreFull("no room")

    monkeypatch.setattr(broker.state.store, "append", full)
    clock.advance(seconds=1)
    timers = broker.state.timers
    assert timers is not None
    assert timers.turn() == pytest.approx(0.1)
    monkeypatch.setattr(broker.state.store, "append", append)

    assert await delivered(broker, client, 3) == [b"0", b"1", b"2"]


async def test_a_restart_in_the_middle_delivers_the_rest_once(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, **SMALL) as broker, wire(broker) as client:
        await client.send("T", b"first", TIMER_DELAY_SEC="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 1)
        for i in range(120):
            await client.send("T", b"%d" % i, TIMER_DELAY_SEC=str(2 + i % 3))
        await on_the_wheel(broker)
    saved = struct.unpack_from(">7q", (tmp_path / "config" / "timercheck").read_bytes())
    assert saved[0] == NOW_MS + 1000  # read up to
    assert saved[1] == 52 * 100 + 52 * 22  # 99 units and the end mark fit into a file
    assert saved[2:4] == (121, 121)
    counts = json.loads((tmp_path / "config" / "timermetrics").read_text())["timingCount"]
    assert counts["T"]["count"] == 120

    clock.advance(seconds=60)
    async with running(tmp_path, clock=clock, **SMALL) as broker, wire(broker) as client:
        bodies = await delivered(broker, client, 121)
        assert bodies[0] == b"first"
        assert bodies[1:] == [b"%d" % i for second in range(3) for i in range(second, 120, 3)]
        info = json.loads((await client.ask(RUNTIME_INFO)).body)["table"]
        assert (info["timerOffsetBehind"], info["timerCongestNum"]) == ("0", "0")
        checkpoint = struct.unpack(">7q", (await client.ask(TIMER_CHECK_POINT)).body)
        assert checkpoint[2] == 121


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("precision_ms", "days"), [(1000, 8), (1000, 14), (1000, 40), (100, 1), (100, 9)])
async def test_what_waited_longer_than_a_turn_of_the_wheel_is_delivered_by_a_broker_that_was_away(
    tmp_path: Path, clock: ManualClock, precision_ms: int, days: int, *, killed: bool
) -> None:
    """A turn has seven days, or with the finest slots less than one. Apache's broker begins a turn before now, and loses the rest."""
    changes = {**SMALL, "timerPrecisionMs": precision_ms}
    store = tmp_path / "store"
    async with running(store, clock=clock, **changes) as broker, wire(broker) as client:
        for body, seconds in ((b"soon", 3600), (b"later", 7200), (b"rolls", 2 * 86_400 - 3600)):
            assert (await client.send("T", body, TIMER_DELAY_SEC=str(seconds))).code == 0
        await on_the_wheel(broker)
        if killed:
            topics = store / "config" / "topics.json"
            await until(lambda: topics.exists() and '"T"' in topics.read_text(), what="saving the topic")
            store = killed_copy(store, tmp_path / "killed")
    clock.advance(seconds=days * 86_400)
    async with running(store, clock=clock, **changes) as broker, wire(broker) as client:
        await all_fired(broker, clock)
        if days == 1:
            assert sorted(await delivered(broker, client, 2)) == [b"later", b"soon"]
            clock.advance(seconds=86_400)
            await all_fired(broker, clock)

        assert sorted(await delivered(broker, client, 3)) == [b"later", b"rolls", b"soon"]


async def test_a_slot_of_two_turns_ago_fires_before_anything_is_put_into_it_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    two_turns_seconds = 14 * 86_400
    async with running(tmp_path, clock=clock, **SMALL) as broker, wire(broker) as client:
        assert (await client.send("T", b"old", TIMER_DELAY_SEC="3600")).code == 0
        await on_the_wheel(broker)
    clock.advance(seconds=two_turns_seconds)
    async with running(tmp_path, clock=clock, **SMALL, timerStopDequeue="true") as broker, wire(broker) as client:
        assert (await client.send("T", b"new", TIMER_DELAY_SEC="3600")).code == 0
        timers = broker.state.timers
        assert timers is not None
        for _ in range(5):
            timers.turn()
        assert timers.queue_behind == 1

        await client.ask(25, None, b"timerStopDequeue=false")

        assert await delivered(broker, client, 1) == [b"old"]
        await on_the_wheel(broker)
        clock.advance(seconds=3600)
        assert await delivered(broker, client, 2) == [b"old", b"new"]


async def test_what_is_on_the_wheel_from_before_a_cut_of_the_log_counts_no_more(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    timers, log = broker.state.timers, broker.state.store.log
    assert timers is not None
    at = log.end
    await client.send("T", b"x", TIMER_DELAY_SEC="5")
    await on_the_wheel(broker)
    sooner = Timer(NOW_MS + 2000, at, log.end - at, 0)  # what was at that place of the log before the cut
    assert timers.wheel.put_many([sooner], NOW_MS) == 1
    clock.advance(seconds=4)
    await all_fired(broker, clock)
    assert await client.bodies("T") == [], "three seconds too early"
    clock.advance(seconds=2)
    await all_fired(broker, clock)
    assert await client.bodies("T") == [b"x"]

    end = log.end
    timers.wheel._known.update((at, end, end + 100))  # found on the wheel at start
    timers.wheel.queue_offset = 7
    timers.wheel.save(timers.wheel.mark_to_save(), clock.now_ms())

    timers.log_was_cut(NOW_MS + 40_000)

    saved = timers.wheel.checkpoint
    assert (saved.queue_offset, saved.log_synced_offset) == (1, timers.wheel.log.end)
    assert [timers.wheel.was_put(offset) for offset in (at, end, end + 100)] == [True, False, False]


async def test_a_foreign_message_in_the_timer_topic_stops_nobody(
    client: Wire, broker: Broker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker.state.store.append(WHEEL_TOPIC, 0, b"stray", b"TIMER_OUT_MS\x01soon\x02", NOW_MS, b"\x7f\0\0\1\0\0\0\1")
    await client.send("T", b"sound", TIMER_DELAY_SEC="1")

    clock.advance(seconds=1)

    assert await delivered(broker, client, 1) == [b"sound"]
    assert "does not say when or where" in caplog.text


async def test_memory_does_not_grow_with_the_messages_that_wait(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    """`python -m benchmarks timers` does this with a million messages."""
    timers, sending = broker.state.timers, broker.state.sending
    assert timers is not None

    async def take(first: int, count: int) -> int:
        for number in range(first, first + count):
            properties = f"TIMER_DELAY_SEC\x01{1 + number % 3600}\x02"
            sending.put("T", 0, b"x" * 100, properties, NOW_MS, b"\x7f\0\0\1\0\0\0\1")
            if number % 500 == 0:
                await on_the_wheel(broker)
        await on_the_wheel(broker)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = await take(0, 1500)
        many = await take(1500, 6000)
    finally:
        tracemalloc.stop()
    assert many - few < 6000 * 100  # bytes a message; kept in memory, each would take several hundred
    delivered_early = broker.state.store.queue_range("T", 0).max_offset
    assert (delivered_early, timers.counts.total()) == (0, 7500)

    clock.advance(seconds=3601)

    await until(lambda: broker.state.store.queue_range("T", 0).max_offset == 7500, what="delivery of all")
    assert timers.counts.total() == 0
