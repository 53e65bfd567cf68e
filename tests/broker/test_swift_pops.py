"""The compiled pops: they answer the very bytes of the ordinary way and leave behind what it leaves, or leave the pop to it."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from orbitmq.accelerated import SWITCH
from orbitmq.broker.routes import build_routes
from orbitmq.clock import ManualClock
from orbitmq.errors import StorageError
from orbitmq.message.record import decode_records
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY, RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.storage.store import Store
from orbitmq.transport.server import Server
from tests.broker.kit import SEND_V2, running, send_header, wire
from tests.broker.lease_kit import ACK, POP, LeaseClient, ack_fields
from tests.broker.test_swift_acks import acknowledged
from tests.line import connected, plain_answer, swift_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from tests.broker.kit import Wire
    from tests.broker.lease_kit import Leased

TIMERS = "rmq_sys_wheel_timer"
QUEUES, MESSAGES = 4, 240
# A read ends with its file, so an answer depends on which entries of a queue are in one.
UNTOUCHED: dict[str, Any] = {"flushIntervalConsumeQueue": 3_600_000}
COUNTED = (
    "GROUP_CK_NUMS", "BROKER_CK_NUMS", "GROUP_ACK_NUMS", "BROKER_ACK_NUMS", "GROUP_GET_NUMS", "GROUP_GET_SIZE",
    "BROKER_GET_NUMS",
)  # fmt: skip


def pop_fields(group: str = "LG", **changes: Any) -> dict[str, str]:
    """A change to None leaves the field out."""
    fields = {
        "consumerGroup": group, "topic": "T", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": 0, "initMode": 0, **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items() if value is not None}


def frame(number: int, fields: dict[str, str], **changes: Any) -> bytes:
    return commands.encode(Command(changes.pop("code", POP), opaque=number, fields=fields, **changes))


async def fill(client: Wire, broker: Broker, messages: int = MESSAGES) -> None:
    """More in some queues than in others, in several files of the log."""
    chance = random.Random(7)
    for number in range(messages):
        queue_id = chance.choice((0, 0, 0, 1, 1, 2, 3))
        body = b"%d " % number + bytes(chance.choice((1, 100, 3000, 9000)))
        await client.send("T", body, queue_id, TAGS=chance.choice("ab"))
    broker.state.store.dispatch()


def place_at_start(broker: Broker, *groups: str) -> None:
    for group in groups:
        for queue_id in range(QUEUES):
            broker.state.offsets.commit(group, "T", queue_id, 0)


async def make_groups(broker: Broker, *groups: str) -> None:
    """As of any but their first pop, which waits for the disk, and is never a compiled one."""
    for group in groups:
        broker.state.groups.require(group)
    await broker.state.groups.settle()


class Both:
    """A broker whose pops are asked for in both ways."""

    def __init__(self, broker: Broker, ordinary: Server) -> None:
        self.broker = broker
        self._ordinary = ordinary

    def swift(self, *frames: bytes) -> tuple[int, bytes]:
        return swift_answer(self.broker, *frames)

    def plain(self, frame: bytes) -> bytes:
        return plain_answer(self._ordinary, frame)

    def state_of(self, group: str) -> tuple[object, ...]:
        state = self.broker.state
        return (
            dict(state.offsets.queues(group, "T")),
            [state.open_leases.in_flight("T", group, queue_id) for queue_id in range(QUEUES)],
            [(counter.value, counter.times) for _, counter in state.statistics.counters("GROUP_CK_NUMS")],
            state.store.log.end,
        )


@asynccontextmanager
async def both_ways(tmp_path: Path) -> AsyncIterator[Both]:
    async with running(tmp_path, clock=ManualClock(), **UNTOUCHED) as broker, wire(broker) as client:
        await fill(client, broker)
        place_at_start(broker, "LG", "PG")
        await make_groups(broker, "LG", "PG")
        ordinary = Server(build_routes(broker.state))
        await ordinary.start("127.0.0.1", 0)
        yield Both(broker, ordinary)
        await ordinary.stop()


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("policy", ["DELETE", "COMPACTION"])
async def test_pops_of_a_compacted_topic_go_the_ordinary_way(tmp_path: Path, policy: str) -> None:
    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client:
        fields = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": f"+cleanup.policy={policy}",
        }  # fmt: skip
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        await client.send("T", b"x", KEYS="k")
        broker.state.store.dispatch()
        broker.state.offsets.commit("LG", "T", 0, 0)
        await make_groups(broker, "LG")
        taken, _ = swift_answer(broker, frame(1, pop_fields()))
        assert bool(taken) == (policy == "DELETE")


@pytest.mark.usefixtures("accelerator")
async def test_pops_of_a_group_that_is_new_go_the_ordinary_way_until_it_is_kept(tmp_path: Path) -> None:
    async with both_ways(tmp_path) as both:
        groups = both.broker.state.groups
        place_at_start(both.broker, "New")
        for number in range(2):
            assert both.swift(frame(number, pop_fields("New"))) == (0, b"")
            assert groups.get("New") is not None
        await groups.settle()
        assert both.swift(frame(3, pop_fields("New")))[0] > 0


@pytest.mark.usefixtures("accelerator")
async def test_usual_pops_are_answered_with_the_same_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with both_ways(tmp_path) as both:
        popping = both.broker.state.pops.popping
        given = 0
        for number in range(40):
            changes: dict[str, Any] = {
                "queueId": chance.choice((-1, -1, -1, 0, 1)),
                "maxMsgNums": chance.choice((32, 32, 1, 5, 17)),
                "invisibleTime": chance.choice((60_000, 1500, 7_200_000)),
                "exp": chance.choice((None, "*", "")),
                "expType": chance.choice((None, "TAG")),
                "order": chance.choice((None, "false")),
                "attemptId": chance.choice((None, "x")),
            }
            drawn = chance.randrange(100)
            answers = []
            for group in ("LG", "PG"):
                popping.put_back(drawn)
                popping._pops = number
                request = frame(number, pop_fields(group, **changes))
                taken, swift = both.swift(request) if group == "LG" else (0, b"")
                assert taken in (0, len(request))
                answers.append(swift if taken else both.plain(request))
                given += bool(taken)
            assert answers[0] == answers[1]
        assert given > 15
        state = both.broker.state
        assert state.offsets.queues("LG", "T") == state.offsets.queues("PG", "T")
        assert checkpoints(both.broker, "LG") == checkpoints(both.broker, "PG")
        for queue_id in range(QUEUES):
            assert state.open_leases.in_flight("T", "LG", queue_id) == state.open_leases.in_flight("T", "PG", queue_id)
        counted = {
            name: {key: (counter.value, counter.times) for key, counter in state.statistics.counters(name)}
            for name in ("GROUP_CK_NUMS", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "POP_REVIVE_IN_NUMS")
        }
        for counters in counted.values():
            for key, value in counters.items():
                assert counters[key.replace("PG", "LG")] == value


def checkpoints(broker: Broker, group: str) -> list[tuple[bytes, dict[str, str]]]:
    """As they stand in the log, but for the group."""
    broker.state.store.dispatch()
    found = []
    for offset in range(broker.state.store.queue_range(TIMERS, 0).max_offset):
        (message,) = decode_records(broker.state.store.read(TIMERS, 0, offset, 1).buffers[0])
        if f'"c":"{group}"'.encode() in message.body:
            told = {name: value.replace(group, "G") for name, value in message.properties.items()}
            found.append((message.body.replace(group.encode(), b"G"), told))
    return found


UNUSUAL: list[dict[str, Any]] = [
    {"order": "true"},
    {"exp": "a", "expType": "TAG"},
    {"exp": "TAGS = 'a'", "expType": "SQL92"},
    {"exp": "||", "expType": "TAG"},
    {"queueId": 4},
    {"queueId": -2},
    {"queueId": "00"},
    {"maxMsgNums": 0},
    {"maxMsgNums": 33},
    {"maxMsgNums": "1_0"},
    {"invisibleTime": 1000},
    {"invisibleTime": -1},
    {"invisibleTime": 4 * 24 * 3600 * 1000},
    {"invisibleTime": None},
    {"bornTime": 1},
    {"bornTime": "9" * 30},
    {"pollTime": -5},
    {"initMode": None},
    {"topic": "Unheard"},
    {"topic": "x" * 600},
    {"consumerGroup": "Newcomers"},
    {"consumerGroup": "Группа"},
    {"consumerGroup": ""},
    {"topic": 'with "quotes"'},
]


@pytest.mark.usefixtures("accelerator")
async def test_an_unusual_pop_is_left_to_the_ordinary_way_untouched(tmp_path: Path) -> None:
    async with both_ways(tmp_path) as both:
        before = both.state_of("LG")
        for number, changes in enumerate(UNUSUAL):
            request = frame(number, pop_fields(**changes))
            assert both.swift(request) == (0, b""), changes
        usual = frame(1, pop_fields())
        for odd in (
            frame(1, pop_fields(), flag=FLAG_ONEWAY),
            frame(1, pop_fields(), body=b"x"),
            usual[:-1],
            usual[:30],
        ):
            assert both.swift(odd) == (0, b"")
        assert both.state_of("LG") == before
        await both.broker.state.groups.settle()  # one of them made a group
        assert both.swift(usual)[0] == len(usual)


@pytest.mark.usefixtures("accelerator")
async def test_pops_that_may_find_messages_to_be_tried_again_are_left_to_the_ordinary_way(tmp_path: Path) -> None:
    async with both_ways(tmp_path) as both:
        state = both.broker.state
        first = frame(1, pop_fields())
        state.pops.popping.put_back(0)
        assert both.swift(first)[0] == len(first)  # there is no retry topic yet
        async with wire(both.broker) as client:
            await client.send("%RETRY%LG_T", b"again")
        state.store.dispatch()
        assert state.topics.get("%RETRY%LG_T") is not None
        state.pops.popping.put_back(0)  # below `popFromRetryProbability`
        assert both.swift(first) == (0, b"")
        state.pops.popping._drawn = None
        state.pops.popping.put_back(99)
        assert both.swift(first)[0] == len(first)


@pytest.mark.usefixtures("accelerator")
async def test_a_pop_that_cannot_be_remembered_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    async with both_ways(tmp_path) as both:
        before = dict(both.broker.state.offsets.queues("LG", "T"))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", full)
            assert both.swift(frame(1, pop_fields())) == (0, b"")
        assert both.broker.state.offsets.queues("LG", "T") == before
        assert both.broker.state.open_leases.in_flight_of("T", "LG") == 0


@pytest.mark.usefixtures("accelerator")
async def test_who_waits_for_what_a_pop_leaves_is_answered(tmp_path: Path) -> None:
    async with both_ways(tmp_path) as both, wire(both.broker) as client:
        waiting = LeaseClient(client)
        state = both.broker.state
        for queue_id in range(QUEUES):
            state.offsets.commit("LG", "T", queue_id, state.store.queue_range("T", queue_id).max_offset)
        held = await waiting.hold_pop("T")
        async with asyncio.timeout(30):
            while not len(state.pops.pops):
                await asyncio.sleep(0.01)
        state.offsets.commit("LG", "T", 0, 0)  # as a reset would
        assert both.swift(frame(2, pop_fields(maxMsgNums=1)))[0] > 0
        answer = await held
        assert answer.code == 0


class Told(NamedTuple):
    answers: list[tuple[object, ...]]
    acknowledged: dict[tuple[str, int, int], list[int]]
    positions: dict[str, dict[int, int]]
    in_flight: list[int]
    counted: dict[str, int]


async def story(directory: Path, seed: int) -> Told:
    """Groups pop and acknowledge, in reads that hold several of their requests, some of which are wrong."""
    chance = random.Random(seed)
    groups = ("LG", "Others")
    clock = ManualClock()
    async with running(directory, clock=clock, **UNTOUCHED) as broker, wire(broker) as client:
        await fill(client, broker)
        await make_groups(broker, *groups)
        broker.state.pops.popping._random = random.Random(seed)
        readers = {group: LeaseClient(client, group) for group in groups}
        connection, line = connected(broker._servers[0])
        leased: list[Leased] = []
        answers: list[tuple[object, ...]] = []
        number = 0
        for _ in range(60):
            clock.advance(ms=5)
            asked: dict[int, str] = {}
            frames = []
            for _ in range(chance.choice((1, 1, 2, 4))):
                number += 1
                asked[number] = chance.choice(groups)
                changes = chance.choice(UNUSUAL) if chance.random() < 0.2 else {}
                if not set(changes) & {"consumerGroup", "order"}:
                    frames.append(frame(number, pop_fields(asked[number], maxMsgNums=chance.choice((1, 8, 32))) | {
                        name: str(value) for name, value in changes.items() if value is not None
                    }))  # fmt: skip
                some, leased = leased[:9], leased[9:]
                for each in some:
                    number += 1
                    frames.append(frame(number, ack_fields(each), code=ACK))
            if chance.random() < 0.2:
                number += 1
                frames.append(frame(number, send_header("T", 1).to_fields(), code=SEND_V2, body=b"sent meanwhile"))
            data = b"".join(frames)
            cut = chance.randrange(len(data)) if data else 0
            for read in (data[:cut], data[cut:]):
                connection.data_received(read)
                for _ in range(3):
                    await asyncio.sleep(0)
            broker.state.store.dispatch()
            for found in FrameDecoder().feed(bytes(line.written)):
                answer = commands.decode(found)
                fields = {name: text for name, text in answer.fields.items() if name not in ("msgId", "transactionId")}
                messages = [(m.queue_id, m.queue_offset, m.body) for m in decode_records(answer.body)]
                answers.append((answer.opaque, answer.code, answer.remark, fields, messages))
                if answer.opaque in asked and answer.code == 0:
                    leased += readers[asked[answer.opaque]].leased("T", answer)
            line.written.clear()
        connection.connection_lost(None)
        state = broker.state
        return Told(
            sorted(answers, key=lambda answer: str(answer[0])),
            acknowledged(broker),
            {group: dict(state.offsets.queues(group, "T")) for group in groups},
            [state.open_leases.in_flight("T", group, queue_id) for group in groups for queue_id in range(QUEUES)],
            {f"{name} {key}": counter.value for name in COUNTED for key, counter in state.statistics.counters(name)},
        )


@pytest.mark.parametrize("seed", range(3))
async def test_a_story_of_pops_and_acks_ends_alike_both_ways(
    tmp_path: Path, seed: int, accelerator: pytest.MonkeyPatch
) -> None:
    compiled_story = await story(tmp_path / "compiled", seed)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await story(tmp_path / "python", seed)
    assert sum(bool(answer[4]) for answer in compiled_story.answers) > 20
    assert compiled_story.acknowledged
