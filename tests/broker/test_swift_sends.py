"""The compiled loops of sends: whole stories, cut into reads anyhow, leave the very bytes that the loops in Python leave."""

from __future__ import annotations

import asyncio
import random
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.broker.handlers.end_express import EndExpress
from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_record
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, EndTransaction
from orbitmq.storage.queue_index import ENTRY
from tests.broker.kit import SEND_BATCH, SEND_V2, running, send_header, wire
from tests.line import connected
from tests.profiling import counted_calls
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

REQUESTS = 400
END_TRANSACTION = 37
TOPICS = ("Orders", "Payments", "T" * 127)


def some_send(number: int, chance: random.Random) -> bytes:
    """Most are usual. The others break a run: of another kind, with other letters, refused."""
    properties = {"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": chance.choice("ab"), "WAIT": "true"}
    odd = chance.random()
    if odd < 0.05:
        properties["цвет"] = "красный"
    elif odd < 0.08:
        properties["DELAY"] = "3"
    elif odd < 0.2:
        properties["KEYS"] = f"k{number} other"
    queue_id = 99 if 0.2 < odd < 0.23 else chance.randrange(4)
    changes = {
        "flag": chance.randrange(3),
        "sys_flag": chance.choice((0, 0, 8)),
        "reconsume_times": chance.randrange(2),
    }
    header = send_header(chance.choice(TOPICS), queue_id, properties, changes)
    body = chance.randbytes(chance.choice((1, 7, 8, 100, 1024, 3000)))
    code = 9999 if 0.23 < odd < 0.25 else SEND_V2
    codec = chance.choice((CODEC_JSON, CODEC_BINARY))
    return commands.encode(Command(code, opaque=number, fields=header.to_fields(), body=body), codec)


def waiting(number: int, chance: random.Random) -> bytes:
    """Messages that ask for more than to be stored: as every client asks, and in ways that few do or that are refused."""
    unique = {"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": "a", "WAIT": "true"}
    level = chance.choice(("1", "18", "19", "0", "-1", "03", "many"))
    moment = str(ManualClock().now_ms() + chance.randrange(-1000, 5000))
    wishes: list[dict[str, str]] = [
        {"DELAY": "2"},
        {"DELAY": level},
        {"TIMER_DELAY_SEC": str(chance.randrange(1, 9))},
        {"TIMER_DELAY_MS": chance.choice(("1", "999", "1000", "300000000", "+5"))},
        {"TIMER_DELIVER_MS": moment},
        {"TRAN_MSG": "true", "PGROUP": "P"},
        {"TRAN_MSG": "True", "PGROUP": "P"},
        {"TRAN_MSG": "true", "PGROUP": "P", "DELAY": level},
        {"DELAY": "1", "TIMER_DELAY_SEC": "3"},
        {"MYDELAY": "1"},
        {"TIMER_OF_MINE": "1"},
        {"DELAY": "1", "CLUSTER": "said by the client as well"},
        {"DELAY": "1", "REAL_QID": "7"},
        {"POP_CK": "0 1 2 3 0 broker-a 0 0", "color": "red"},
        {"DELAY": "1", "POP_CK": "0 1 2 3 0 broker-a 0 0"},
        {"TRAN_MSG": "true", "PGROUP": "P", "POP_CK": "x"},
        {"note": "POP_CK and TIMER_ are said in a value"},
    ]
    changes = {"sys_flag": chance.choice((0, 0, 0, 4, 12))}
    header = send_header(chance.choice(TOPICS), chance.randrange(4), unique | chance.choice(wishes), changes)
    if chance.random() < 0.1:
        header.properties += chance.choice(("DELAY\x01", "DELAY\x012\x02DELAY\x013", "odd"))
    codec = chance.choice((CODEC_JSON, CODEC_BINARY))
    return commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=chance.randbytes(99)), codec)


def batch(number: int, chance: random.Random) -> bytes:
    members = [
        BatchMember(
            chance.randbytes(chance.choice((0, 1, 300, 3000)) if chance.random() < 0.98 else 140_000),
            encode_properties({"UNIQ_KEY": f"{number:X}B{index}", "TAGS": chance.choice("ab")}),
            chance.randrange(-2, 2),
        )
        for index in range(chance.choice((1, 5, 20)))
    ]
    odd = chance.random()
    if odd < 0.1:
        members[0].properties = members[0].properties[:-1]  # as Java ends them
    elif odd < 0.2:
        odd_ones = (
            b"", b"INNER_NUM\x012\x02", b"K\x01INNER_NUM\x012\x02", b"K\x01v\x02POP_CK\x010 1 2", b"K\x01" + b"x" * 32_700,
        )  # fmt: skip
        members[-1].properties = chance.choice(odd_ones)
    outer = {"UNIQ_KEY": f"7F0000010009{number:020X}"} | chance.choice(({}, {}, {}, {"DELAY": "1"}))
    changes = {"batch": True, "sys_flag": chance.choice((0, 0, 0, 4, 8))}
    if odd > 0.4:  # as Python's client: the members have ids, and the batch has none
        outer = {} if odd > 0.5 else {"WAIT": "true"} if odd > 0.45 else {"UNIQ_KEY": "", "a": "b"}
    header = send_header(chance.choice(TOPICS), chance.randrange(4), outer, changes)
    body = encode_batch(members)
    if 0.2 < odd < 0.25:
        body = body[: chance.randrange(1, len(body))]
    codec = chance.choice((CODEC_JSON, CODEC_BINARY))
    code = SEND_BATCH if odd > 0.05 else SEND_V2
    return commands.encode(Command(code, opaque=number, fields=header.to_fields(), body=body), codec)


def some_request(number: int, chance: random.Random) -> bytes:
    return chance.choice((some_send, some_send, waiting, batch))(number, chance)


def large_batches(number: int, chance: random.Random) -> bytes:
    """Many of them one behind the other, to a topic and the next, and now and then something else."""
    if chance.random() < 0.2:
        return some_request(number, chance)
    members = [
        BatchMember(chance.randbytes(2000), encode_properties({"UNIQ_KEY": f"{number:X}B{index}"}))
        for index in range(chance.choice((9, 12, 16)))
    ]
    topic = TOPICS[number // 8 % 2]
    header = send_header(topic, chance.randrange(2), {}, {"batch": True})
    command = Command(SEND_BATCH, opaque=number, fields=header.to_fields(), body=encode_batch(members))
    return commands.encode(command)


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """As reads come: many frames, one, or a part of one."""
    reads = []
    while data:
        size = chance.choice((3, 100, 1500, 20_000, 60_000, 900_000))
        reads.append(data[:size])
        data = data[size:]
    return reads


class Told(NamedTuple):
    """What a story ends with."""

    answers: list[tuple[int, int, Mapping[str, str]]]
    files: dict[str, bytes]  # with messages or indexes in them
    undecided: Mapping[str, int]  # half messages by topic
    counted: int


async def story(directory: Path, seed: int, request: Callable[[int, random.Random], bytes], **settings: object) -> Told:
    chance = random.Random(seed)
    reads = cut(b"".join(request(number, chance) for number in range(REQUESTS)), chance)
    small: dict[str, Any] = {"mappedFileSizeCommitLog": 128 << 10, "maxIndexNum": 300}
    async with running(directory, clock=ManualClock(), **small | settings) as broker:
        broker.state.store.settle_at(bytes(8))  # each has a port of its own
        broker.state.receipts.settle_at(bytes(8))
        connection, line = connected(broker._servers[0])
        for read in reads:
            connection.data_received(read)
        # The first receipt of a new topic waits until the topic has a route.
        await until(lambda: len(FrameDecoder().feed(bytes(line.written))) == REQUESTS, what="an answer to each request")
        answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
        connection.connection_lost(None)
        undecided, counted = broker.state.half_messages.by_topic(), broker.state.sending.all_puts.value
    return Told(
        sorted((answer.opaque, answer.code, dict(answer.fields)) for answer in answers),
        stored_in(directory),
        undecided,
        counted,
    )


def stored_in(directory: Path) -> dict[str, bytes]:
    found = {
        str(file.relative_to(directory)): file.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for file in sorted((directory / folder).rglob("*"))
        if file.is_file()
    }
    # Index files are named by when they were begun, which keys that wait are free to choose; what counts is their order.
    for number, file in enumerate(sorted((directory / "index").iterdir())):
        found[f"index {number}"] = file.read_bytes()
    return found


@pytest.mark.parametrize(
    ("request_of", "file_bytes"), [(some_send, 128 << 10), (some_request, 128 << 10), (large_batches, 1 << 20)]
)
@pytest.mark.parametrize("seed", range(3))
async def test_a_story_leaves_the_same_bytes_both_ways(
    tmp_path: Path,
    seed: int,
    request_of: Callable[[int, random.Random], bytes],
    file_bytes: int,
    accelerator: pytest.MonkeyPatch,
) -> None:
    compiled_story = await story(tmp_path / "compiled", seed, request_of, mappedFileSizeCommitLog=file_bytes)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await story(tmp_path / "python", seed, request_of, mappedFileSizeCommitLog=file_bytes)
    assert len(compiled_story.answers) == REQUESTS
    logs = [data for name, data in compiled_story.files.items() if name.startswith("commitlog")]
    assert len(logs) > 2
    assert b"POP_CK\x01" not in b"".join(logs), "a handle is the broker's word"


async def deliveries(directory: Path, seed: int) -> Told:
    """What waits is sent on, in the same order on every machine: nothing else has a turn meanwhile."""
    chance = random.Random(seed)
    clock = ManualClock()
    async with running(directory, clock=clock, mappedFileSizeCommitLog=64 << 10) as broker:
        timers = broker.state.timers
        assert timers is not None
        broker.state.store.settle_at(bytes(8))
        broker.state.receipts.settle_at(bytes(8))
        connection, line = connected(broker._servers[0])
        for turn in range(6):
            for topic in TOPICS:  # new messages among those that were sent on
                plain = send_header(topic, turn % 4, {"UNIQ_KEY": f"7F0000010003{turn:020X}"})
                connection.data_received(commands.encode(Command(SEND_V2, fields=plain.to_fields(), body=b"plain")))
            for number in range(60):
                connection.data_received(waiting(turn * 60 + number, chance))
            broker.state.store.dispatch()
            while timers.turn() == 0:
                pass
            clock.advance(seconds=chance.choice((1, 3, 10)))
            broker.state.delayed.message_arrived(1)
            while broker.state.delayed.deliver_due() == 0:
                pass
            while timers.turn() == 0:
                pass
        answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
        connection.connection_lost(None)
        undecided, counted = broker.state.half_messages.by_topic(), broker.state.sending.all_puts.value
        waits = timers.counts.table().timing_count
    told = [(answer.opaque, answer.code, answer.fields) for answer in answers]
    return Told(told, stored_in(directory), undecided | {topic: each.count for topic, each in waits.items()}, counted)


@pytest.mark.parametrize("seed", range(2))
async def test_what_has_waited_is_sent_on_with_the_same_bytes_both_ways(
    tmp_path: Path, seed: int, accelerator: pytest.MonkeyPatch
) -> None:
    compiled_story = await deliveries(tmp_path / "compiled", seed)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await deliveries(tmp_path / "python", seed)
    sent_on = b"".join(data for name, data in compiled_story.files.items() if name.startswith("commitlog"))
    assert sent_on.count(b"TIMER_DEQUEUE_MS") > 10


async def test_only_a_record_that_waited_there_and_long_enough_is_sent_on(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "store", clock=ManualClock()) as broker, wire(broker) as client:
        store, now_ms, waited_in = broker.state.store, ManualClock().now_ms(), b"SCHEDULE_TOPIC_XXXX"
        await client.send("T", b"plain")
        await client.send("T", b"delayed", 2, UNIQ_KEY="A", DELAY="18")
        store.dispatch()
        offset, size, due_ms = ENTRY.unpack(store.packed_entries("SCHEDULE_TOPIC_XXXX", 17, 0, 1))
        record = store.record_at(offset)
        assert record is not None
        noted = memoryview(bytearray(8))
        entries = {
            "what was never there": ENTRY.pack(store.log.end + 5, size, due_ms),
            "before the beginning": ENTRY.pack(-1, size, due_ms),
            "of another size": ENTRY.pack(offset, size - 1, due_ms),
            "of no size": ENTRY.pack(offset, -1, due_ms),
            "stored after it was due": ENTRY.pack(offset, size, now_ms - 1),
            "not due yet": ENTRY.pack(offset, size, due_ms + 1),
        }
        for name, entry in entries.items():
            assert store.sending_on.delayed(entry, waited_in, due_ms, noted, 7).messages == 0, name
        usual = ENTRY.pack(offset, size, due_ms)
        assert store.sending_on.delayed(usual, b"T", due_ms, noted, 7).messages == 0  # it waited elsewhere
        assert store.sending_on.commit_half(record, waited_in, b"P", 0) is None  # it is of no transaction
        assert bytes(noted) == bytes(8)
        assert await client.bodies("T", 2) == []

        sent = store.sending_on.delayed(usual + usual + entries["of no size"] + usual, waited_in, due_ms, noted, 7)
        assert sent.messages == 2
        assert [(topic, messages) for topic, messages, _ in sent.by_topic] == [("T", 2)]
        assert int.from_bytes(noted, "big") == 9
        assert await client.bodies("T", 2) == [b"delayed", b"delayed"]


async def transactions(directory: Path, seed: int) -> Told:
    """Half messages and what is decided about those before, in the same reads; some decisions are forged."""
    chance = random.Random(seed)
    answers: list[tuple[int, int, Mapping[str, str]]] = []
    async with running(directory, clock=ManualClock(), mappedFileSizeCommitLog=32 << 10) as broker:
        broker.state.store.settle_at(bytes(8))
        broker.state.receipts.settle_at(bytes(8))
        broker.state.half_messages.settle_at(bytes(8))
        connection, line = connected(broker._servers[0])
        plain = send_header("Orders", 0, {"UNIQ_KEY": "7F0000010003"})
        connection.data_received(commands.encode(Command(SEND_V2, fields=plain.to_fields(), body=b"plain")))
        await until(lambda: bool(line.written), what="the first receipt, which waits until the topic has a route")
        ends: list[bytes] = []
        for turn in range(12):
            halves = [half_message(turn * 20 + number, chance) for number in range(20)]
            requests = halves + ends
            chance.shuffle(requests)
            line.written.clear()
            connection.data_received(b"".join(requests))
            told = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
            answers += [(answer.opaque, answer.code, answer.fields) for answer in told]
            ends = [end_of(receipt.fields, chance) for receipt in told if "msgId" in receipt.fields]
            await asyncio.sleep(0)  # what was decided is written down
        connection.connection_lost(None)
        undecided, counted = broker.state.half_messages.by_topic(), broker.state.sending.all_puts.value
    return Told(answers, stored_in(directory), undecided, counted)


def half_message(number: int, chance: random.Random) -> bytes:
    kind = {"TRAN_MSG": "true", "PGROUP": "P"} if chance.random() < 0.9 else {}
    header = send_header("Orders", chance.randrange(4), {"UNIQ_KEY": f"7F0000010001{number:020X}"} | kind)
    return commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=chance.randbytes(200)))


def end_of(receipt: Mapping[str, str], chance: random.Random) -> bytes:
    group = chance.choice(("P", "P", "P", "another"))
    decision = chance.choice((COMMIT, COMMIT, ROLLBACK, UNKNOWN))
    return end_frame(receipt, group, decision, chance.choice((0, FLAG_ONEWAY)))


def end_frame(receipt: Mapping[str, str], group: str, decision: int, flag: int) -> bytes:
    header = EndTransaction(
        producer_group=group,
        tran_state_table_offset=int(receipt["queueOffset"]),
        commit_log_offset=int(receipt["msgId"][16:], 16),
        commit_or_rollback=decision,
        msg_id="M",
    )
    return commands.encode(Command(END_TRANSACTION, opaque=9999, flag=flag, fields=header.to_fields()))


@pytest.mark.parametrize("sys_flag", [0, 4, 8, 12])
@pytest.mark.parametrize("was_half", [True, False])
async def test_what_is_sent_to_dead_letters_is_no_half_message_whichever_way_it_goes(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, sys_flag: int, was_half: bool
) -> None:
    properties = {"TRAN_MSG": "true", "PGROUP": "P"} if was_half else {}
    header = send_header("%DLQ%G", 0, {"UNIQ_KEY": "U"} | properties, {"sys_flag": sys_flag})
    frame = commands.encode(Command(SEND_V2, opaque=7, fields=header.to_fields(), body=b"paid"))
    flags = []
    for way in ("compiled", "python"):
        async with running(tmp_path / way, clock=ManualClock()) as broker, wire(broker) as client:
            await client.send("%DLQ%G", b"the topic is there")
            await client.send("T", b"half", TRAN_MSG="true", PGROUP="P")
            connection, line = connected(broker._servers[0])
            connection.data_received(frame)
            assert [commands.decode(answer).code for answer in FrameDecoder().feed(bytes(line.written))] == [0]
            await asyncio.sleep(0)
            flags += [message.sys_flag for message in await client.messages("%DLQ%G") if message.body == b"paid"]
            assert broker.state.half_messages.by_topic() == {"T": 1}
            connection.connection_lost(None)
        accelerator.setenv(SWITCH, "0")
    assert flags == [0, 0]


@pytest.mark.parametrize("seed", range(2))
async def test_decisions_between_half_messages_leave_the_same_bytes_both_ways(
    tmp_path: Path, seed: int, accelerator: pytest.MonkeyPatch
) -> None:
    compiled_story = await transactions(tmp_path / "compiled", seed)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await transactions(tmp_path / "python", seed)
    assert len([name for name in compiled_story.files if name.startswith("commitlog")]) > 2
    assert compiled_story.undecided


async def test_commits_do_not_leave_the_compiled_loop_where_the_log_needs_more_pages(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    count, body = 300, b"x" * 5000
    in_python: list[bytes] = []

    def decide(_express: EndExpress, _connection: object, header: bytes, _body: bytes) -> None:
        in_python.append(header)

    accelerator.setattr(EndExpress, "__call__", decide)
    async with (
        running(tmp_path, clock=ManualClock(), mappedFileSizeCommitLog=16 << 20) as broker,
        wire(broker) as client,
    ):
        await client.send("T", b"plain", 1)
        await client.send("T", b"half", 1, TRAN_MSG="true", PGROUP="P")
        connection, line = connected(broker._servers[0])
        headers = [send_header("T", 1, {"UNIQ_KEY": f"A{n}", "TRAN_MSG": "true", "PGROUP": "P"}) for n in range(count)]
        halves = [
            commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=body))
            for number, header in enumerate(headers)
        ]
        connection.data_received(b"".join(halves))
        receipts = [commands.decode(frame).fields for frame in FrameDecoder().feed(bytes(line.written))]
        ends = [end_frame(receipt, "P", COMMIT, FLAG_ONEWAY) for receipt in receipts]
        # Between half messages, as producers send them.
        connection.data_received(b"".join(half + end for half, end in zip(halves, ends, strict=True)))
        await asyncio.sleep(0)
        assert broker.state.half_messages.by_topic() == {"T": 1 + count}
        assert len(await client.bodies("T", 1)) == 1 + count
        connection.connection_lost(None)
    assert in_python == []


@pytest.mark.parametrize("by_instruction", [True, False])
async def test_checksums_are_right_whatever_the_length(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, by_instruction: bool
) -> None:
    sends, chance = compiled("sends"), random.Random(5)
    assert sends is not None
    if sends.use_instructions_for_checksums(by_instruction) != by_instruction:
        pytest.skip("this processor cannot multiply without carrying")
    bodies = [chance.randbytes(length) for length in (*range(1, 150), 1023, 1024, 1025, 4097)]
    try:
        async with running(tmp_path / "store") as broker:
            connection, _ = connected(broker._servers[0])
            plain = send_header("Orders", 0, {"UNIQ_KEY": "A1"}).to_fields()
            for body in (b"the topic is there", *bodies):
                connection.data_received(commands.encode(Command(SEND_V2, fields=plain, body=body)))
            connection.connection_lost(None)
            broker.state.store.dispatch()
            for number, body in enumerate(bodies, 1):
                (record,) = broker.state.store.read("Orders", 0, number, 1).buffers
                assert decode_record(record).body == body
                assert int.from_bytes(record[8:12], "big") == zlib.crc32(body) & 0x7FFFFFFF
    finally:
        sends.use_instructions_for_checksums(True)


@pytest.mark.parametrize("settings", [{"rejectTransactionMessage": "true"}, {"timerWheelEnable": "false"}])
async def test_what_a_broker_does_not_take_is_refused_both_ways(
    tmp_path: Path, settings: dict[str, Any], accelerator: pytest.MonkeyPatch
) -> None:
    compiled_story = await story(tmp_path / "compiled", 7, waiting, **settings)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await story(tmp_path / "python", 7, waiting, **settings)


async def test_a_run_ends_before_what_is_unusual(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        await client.send("T", b"the topic is there")
        swift = broker._servers[0]._service.swift
        assert swift is not None
        usual = send_header("T", 1, {"UNIQ_KEY": "A1"})
        delayed = send_header("T", 1, {"UNIQ_KEY": "A2", "DELAY": "99"})
        frames = [
            commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=b"body"))
            for number, header in enumerate((usual, usual, delayed, usual))
        ]
        connection, _ = connected(broker._servers[0])
        taken, answers = swift(connection, b"".join(frames))

        assert taken == len(frames[0]) + len(frames[1])
        assert [commands.decode(frame).opaque for frame in FrameDecoder().feed(answers)] == [0, 1]
        assert swift(connection, frames[3][:-1]) == (0, b"")  # half a frame
        connection.connection_lost(None)


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_run_goes_on_in_the_next_file_if_there_can_be_one(
    tmp_path: Path, has_room: bool, accelerator: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "store", mappedFileSizeCommitLog=64 << 10) as broker, wire(broker) as client:
        await client.send("T", b"the topic is there")
        store = broker.state.store
        members = encode_batch([BatchMember(b"1" * 500), BatchMember(b"2" * 500)])
        single, many = send_header("T", 1, {"UNIQ_KEY": "A1"}), send_header("T", 1, {"UNIQ_KEY": "B"}, {"batch": True})
        requests = [
            Command(SEND_BATCH, opaque=number, fields=many.to_fields(), body=members)
            if number % 3
            else Command(SEND_V2, opaque=number, fields=single.to_fields(), body=b"x" * 1000)
            for number in range(150)
        ]
        frames = [commands.encode(request) for request in requests]

        def full() -> NoReturn:
            raise StoreFull("no room", code=14)

        if not has_room:
            accelerator.setattr(store.log.files, "roll", full)
        connection, line = connected(broker._servers[0])
        swift = broker._servers[0]._service.swift
        assert swift is not None
        taken, answers = swift(connection, b"".join(frames))
        receipts = FrameDecoder().feed(answers)
        assert taken == sum(map(len, frames[: len(receipts)]))
        if has_room:
            assert len(receipts) == len(frames)
            assert store.log.segment_start >= 2 * (64 << 10)
        else:
            assert 10 < len(receipts) < 64
            connection.data_received(frames[len(receipts)])
            (refused,) = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
            assert (refused.opaque, refused.code) == (len(receipts), 14)
        store.dispatch()
        stored = sum(2 if request.code == SEND_BATCH else 1 for request in requests[: len(receipts)])
        assert store.queue_range("T", 1).max_offset == stored
        connection.connection_lost(None)


async def test_a_run_holds_every_kind(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "store", clock=ManualClock()) as broker, wire(broker) as client:
        kinds: list[dict[str, Any]] = [
            {},
            {"DELAY": "3"},
            {"TIMER_DELAY_SEC": "5"},
            {"TRAN_MSG": "true", "PGROUP": "P"},
        ]
        for kind in kinds:  # the topics that they wait in are there afterwards
            await client.send("T", b"body", **kind)
        headers = [send_header("T", 1, {"UNIQ_KEY": f"A{at}"} | kind) for at, kind in enumerate(kinds)]
        sends = [
            commands.encode(Command(SEND_V2, opaque=at, fields=header.to_fields(), body=b"body"))
            for at, header in enumerate(headers)
        ]
        members = encode_batch([BatchMember(b"one"), BatchMember(b"two")])
        fields = send_header("T", 1, {"UNIQ_KEY": "B"}, {"batch": True}).to_fields()
        everything = b"".join(sends) + commands.encode(Command(SEND_BATCH, opaque=9, fields=fields, body=members))
        connection, _ = connected(broker._servers[0])
        swift = broker._servers[0]._service.swift
        assert swift is not None
        taken, answers = swift(connection, everything)

        assert taken == len(everything)
        receipts = [commands.decode(frame) for frame in FrameDecoder().feed(answers)]
        assert [receipt.opaque for receipt in receipts] == [0, 1, 2, 3, 9]
        assert receipts[2].fields["recallHandle"]
        assert receipts[4].fields["msgId"].count(",") == 1
        assert broker.state.half_messages.by_topic() == {"T": 2}
        connection.connection_lost(None)


@pytest.mark.parametrize(
    ("kind", "most_calls"),
    [({"DELAY": "18"}, 6.0), ({"TIMER_DELAY_SEC": "900"}, 7.0), ({"TRAN_MSG": "true", "PGROUP": "P"}, 9.0)],
)
async def test_what_has_to_wait_is_taken_in_few_calls(
    tmp_path: Path, kind: dict[str, Any], most_calls: float, accelerator: pytest.MonkeyPatch
) -> None:
    """Calls of functions, which are the same on every machine; the bound is above what was counted, far below what Python needs."""
    async with running(tmp_path / "store", clock=ManualClock()) as broker, wire(broker) as client:
        await client.send("T", b"body", **kind)  # topic, queues and caches are there afterwards
        headers = [send_header("T", 1, {"UNIQ_KEY": f"A{number:04}"} | kind) for number in range(64)]
        frames = [
            commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=b"body"))
            for number, header in enumerate(headers)
        ]
        connection, line = connected(broker._servers[0])
        with counted_calls() as calls:
            connection.data_received(b"".join(frames))
        assert len(FrameDecoder().feed(bytes(line.written))) == len(frames)
        connection.connection_lost(None)
    assert calls.count / len(frames) <= most_calls, calls.count / len(frames)


async def test_what_a_run_stores_is_indexed_at_once_however_many_records_a_request_has(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"reviveInterval": 3_600_000}  # whose round would index it by the way
    async with running(tmp_path, **settings) as broker, wire(broker) as client:
        store = broker.state.store
        await client.send("T", b"plain", 1)
        await client.send("T", b"half", 1, TRAN_MSG="true", PGROUP="P", UNIQ_KEY="H0")
        await until(lambda: store.dispatched_offset == store.log.end, what="the first two indexed")
        connection, line = connected(broker._servers[0])
        members = encode_batch([BatchMember(b"%d" % number) for number in range(3)])
        fields = send_header("T", 1, {"UNIQ_KEY": "B"}, {"batch": True}).to_fields()
        connection.data_received(commands.encode(Command(SEND_BATCH, opaque=1, fields=fields, body=members)))
        (receipt,) = map(commands.decode, FrameDecoder().feed(bytes(line.written)))
        assert receipt.code == 0
        await until(lambda: store.dispatched_offset == store.log.end, what="the batch indexed")
        assert store.queue_range("T", 1).max_offset == 4

        half = Command(
            SEND_V2,
            opaque=2,
            fields=send_header("T", 1, {"UNIQ_KEY": "H1", "TRAN_MSG": "true", "PGROUP": "P"}).to_fields(),
            body=b"half",
        )
        line.written.clear()
        connection.data_received(commands.encode(half))
        (receipt,) = map(commands.decode, FrameDecoder().feed(bytes(line.written)))
        await until(lambda: store.dispatched_offset == store.log.end, what="the half message indexed")
        decision = end_frame(receipt.fields, "P", COMMIT, FLAG_ONEWAY)
        connection.data_received(commands.encode(half) + decision)
        await until(lambda: store.dispatched_offset == store.log.end, what="the decision indexed")
        assert store.queue_range("T", 1).max_offset == 5
        connection.connection_lost(None)


@pytest.mark.parametrize("key_bytes", [10, 30_000, 70_000, 125_000])
async def test_a_half_message_with_a_key_of_any_length_is_stored_or_refused_as_in_python(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, key_bytes: int
) -> None:
    properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "K" * key_bytes}
    answers = []
    for switch in ("1", "0"):
        accelerator.setenv(SWITCH, switch)
        async with running(tmp_path / switch) as broker, wire(broker) as client:
            await client.send("T", b"half", 1, TRAN_MSG="true", PGROUP="P", UNIQ_KEY="H0")
            answer = await client.ask(SEND_V2, send_header("T", 1, properties), b"x")
            answers.append((answer.code, answer.remark, (await client.ask(SEND_V2, send_header("T", 1), b"y")).code))
    assert answers[0] == answers[1]
    assert answers[0][2] == 0


class TickingClock(ManualClock):
    """Never the same time twice."""

    def now_ms(self) -> int:
        self.advance(seconds=0.001)
        return super().now_ms()


async def test_times_of_storing_ascend_also_behind_a_decision_in_the_midst_of_a_run(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    def send(key: str, **properties: str) -> bytes:
        fields = send_header("T", 1, {"UNIQ_KEY": key} | properties).to_fields()
        return commands.encode(Command(SEND_V2, opaque=1, fields=fields, body=b"x"))

    async with running(tmp_path, clock=TickingClock()) as broker, wire(broker) as client:
        await client.send("T", b"plain", 1)
        await client.send("T", b"half", 1, TRAN_MSG="true", PGROUP="P")
        connection, line = connected(broker._servers[0])
        connection.data_received(send("H1", TRAN_MSG="true", PGROUP="P"))
        (receipt,) = map(commands.decode, FrameDecoder().feed(bytes(line.written)))
        decision = end_frame(receipt.fields, "P", COMMIT, FLAG_ONEWAY)
        store = broker.state.store
        at, times = store.log.end, []
        connection.data_received(send("S1") + decision + send("S2"))
        while at < store.log.end:
            record = store.record_at(at)
            assert record is not None
            at += len(record)
            times.append(decode_record(record).stored_at_ms)
        connection.connection_lost(None)
    assert len(times) >= 3
    assert times == sorted(times)
