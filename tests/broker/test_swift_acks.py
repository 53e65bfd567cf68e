"""The compiled loop of acks: whole stories, right and wrong acks in reads of any size, end as they do with the loops in Python."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from orbitmq.accelerated import SWITCH
from orbitmq.broker.leases import open_leases
from orbitmq.broker.leases.checkpoints import read_ack
from orbitmq.clock import ManualClock
from orbitmq.message.record import decode_records
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.storage.store import DISPATCH_AT, Store
from tests.broker.kit import SEND_V2, running, send_header, wire
from tests.broker.lease_kit import ACK, LeaseClient, ack_fields
from tests.broker.test_swift_sends import stored_in
from tests.line import connected
from tests.raw_client import until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.storage.appended import Appended
    from tests.broker.lease_kit import Leased

TIMERS = "rmq_sys_wheel_timer"
QUEUES, MESSAGES_EACH = 3, 24
LEASED = 80  # one by one


def frame(number: int, fields: dict[str, str], **changes: Any) -> bytes:
    return commands.encode(Command(changes.pop("code", ACK), opaque=number, fields=fields, **changes))


def odd_ack(number: int, leased: Leased, chance: random.Random) -> bytes:
    handle = leased.handle
    fields = ack_fields(leased)
    wrong: list[dict[str, object]] = [
        {"consumerGroup": "Thieves"},
        {"consumerGroup": "Группа"},
        {"topic": "Nowhere"},
        {"topic": 'with "quotes"'},
        {"queueId": 99},
        {"queueId": f"0{handle.queue_id}"},
        {"offset": 10_000},
        {"offset": handle.offset + 1},
        {"extraInfo": "x"},
        {"extraInfo": handle._replace(pop_time_ms=1).text()},
        {"extraInfo": handle._replace(broker_name="another").text()},
        {"extraInfo": handle._replace(revive_queue=77).text()},
        {"extraInfo": handle._replace(invisible_ms=10**17).text()},
        {"extraInfo": handle.text() + " more"},
        {"extraInfo": handle.text().replace(" ", "  ", 1)},
    ]
    odd = chance.random()
    if odd < 0.1:
        return frame(number, fields, flag=FLAG_ONEWAY)
    if odd < 0.2:
        return frame(number, fields, body=b"what nobody asked for")
    if odd < 0.3:
        return frame(number, send_header("T", 0).to_fields(), code=SEND_V2, body=b"sent meanwhile")
    return frame(number, fields | {name: str(value) for name, value in chance.choice(wrong).items()})


class Told(NamedTuple):
    answers: list[tuple[int, int, str | None]]
    acknowledged: dict[tuple[str, int, int], list[int]]  # offsets by tag of the lease: group, queue, start
    in_flight: list[int]
    counted: int


async def story(directory: Path, seed: int) -> Told:
    chance = random.Random(seed)
    # A read ends with its file, so a pop gives all of its eight messages only if no entries are written meanwhile.
    settings: dict[str, Any] = {"flushIntervalConsumeQueue": 3_600_000}
    async with running(directory, clock=ManualClock(), **settings) as broker, wire(broker) as client:
        for number in range(QUEUES * MESSAGES_EACH):
            await client.send("T", b"%d" % number, number % QUEUES)
        consumers = [LeaseClient(client, group) for group in ("LG", "Others")]
        leased: list[Leased] = []
        for consumer in consumers:
            for queue_id in range(QUEUES):
                for _ in range(3):  # leases of eight messages
                    leased += await consumer.pop("T", queueId=queue_id, maxMsgNums=MESSAGES_EACH // 3)
        assert len(leased) == 2 * QUEUES * MESSAGES_EACH
        connection, line = connected(broker._servers[0])
        number = 0
        while leased:
            some, leased = leased[: chance.choice((1, 5, 8, 20))], leased[20:]
            if chance.random() < 0.3:
                chance.shuffle(some)
            frames = []
            for each in some:
                number += 1
                if chance.random() < 0.1:
                    frames.append(odd_ack(number, each, chance))
                frames.append(frame(1000 + number, ack_fields(each)))
                if chance.random() < 0.05:
                    frames.append(frames[-1])  # said twice
            data = b"".join(frames)
            cut = chance.randrange(len(data))
            for read in (data[:cut], data[cut:]):
                connection.data_received(read)
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)  # what was gathered is written, and then answered
        answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
        connection.connection_lost(None)
        in_flight = [broker.state.open_leases.in_flight("T", of.group, queue) for of in consumers for queue in range(3)]
        counted = sum(counter.value for _, counter in broker.state.statistics.counters("GROUP_ACK_NUMS"))
        return Told(
            sorted((answer.opaque, answer.code, answer.remark) for answer in answers),
            acknowledged(broker),
            in_flight,
            counted,
        )


def acknowledged(broker: Broker) -> dict[tuple[str, int, int], list[int]]:
    broker.state.store.dispatch()
    found: dict[tuple[str, int, int], list[int]] = {}
    for offset in range(broker.state.store.queue_range(TIMERS, 0).max_offset):
        for buffer in broker.state.store.read(TIMERS, 0, offset, 1).buffers:
            (message,) = decode_records(buffer)
            if message.properties["TAGS"] != "ck":
                ack = read_ack(message.body)
                found.setdefault((ack.group, ack.queue_id, ack.start_offset), []).extend(ack.offsets())
    return {lease: sorted(offsets) for lease, offsets in sorted(found.items())}


@pytest.mark.parametrize("seed", range(4))
async def test_a_story_of_acks_ends_alike_both_ways(tmp_path: Path, seed: int, accelerator: pytest.MonkeyPatch) -> None:
    compiled_story = await story(tmp_path / "compiled", seed)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await story(tmp_path / "python", seed)
    assert sum(code == 0 for _, code, _ in compiled_story.answers) > 20
    assert any(code != 0 for _, code, _ in compiled_story.answers)
    for offsets in compiled_story.acknowledged.values():
        assert len(set(offsets)) == len(offsets)  # none counts twice


async def test_acks_of_a_read_are_one_entry_for_each_lease_and_answered_in_one_piece(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client:
        for number in range(8):
            await client.send("T", b"%d" % number, number % 2)
        consumer = LeaseClient(client)
        first, second = [await consumer.pop("T", queueId=queue_id) for queue_id in (0, 1)]
        swift = broker._servers[0]._service.swift
        assert swift is not None
        frames = [frame(number, ack_fields(each)) for number, each in enumerate([*first, *second[:3]], 1)]
        strange = frame(99, ack_fields(second[3], consumerGroup="Thieves"))
        connection, _ = connected(broker._servers[0])
        end_before = broker.state.store.log.end

        taken, answers = swift(connection, b"".join([*frames, strange, frames[0]]))

        assert taken == sum(map(len, frames))
        told = [commands.decode(found) for found in FrameDecoder().feed(answers)]
        assert [(answer.opaque, answer.code) for answer in told] == [(number, 0) for number in range(1, 8)]
        assert broker.state.store.log.end > end_before  # before anybody was told
        assert acknowledged(broker) == {("LG", 0, 0): [0, 1, 2, 3], ("LG", 1, 0): [0, 1, 2]}
        assert broker.state.store.queue_range(TIMERS, 0).max_offset == 4  # two checkpoints, an entry for each lease
        assert swift(connection, frames[0]) == (0, b"")  # said before: the ordinary way knows what to answer
        assert swift(connection, frame(1, ack_fields(second[3]))[:-1]) == (0, b"")  # half a frame
        connection.connection_lost(None)


async def entries_of_many_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, bytes], int]:
    """What leases and acks, one at a time, leave in the store; and how many of them went to the log in Python."""
    settings: dict[str, Any] = {"flushIntervalConsumeQueue": 3_600_000, "mappedFileSizeCommitLog": 8 << 10}
    in_python = 0
    append = Store.append

    def counted(store: Store, topic: str, *rest: Any) -> Appended:
        nonlocal in_python
        in_python += topic == TIMERS
        return append(store, topic, *rest)

    async with running(directory, clock=ManualClock(), **settings) as broker, wire(broker) as client:
        broker.state.store.settle_at(bytes(8))  # each has a port of its own
        broker.state.lease_log.settle_at(bytes(8))
        connection, line = connected(broker._servers[0])
        for number in range(LEASED):
            header = send_header("T", 0, {"UNIQ_KEY": f"{number:032X}"})
            connection.data_received(frame(number, header.to_fields(), code=SEND_V2, body=b"%d" % number))
        # The first receipt of a new topic waits until the topic has a route.
        await until(lambda: len(FrameDecoder().feed(bytes(line.written))) == LEASED, what="all receipts")
        connection.connection_lost(None)
        broker.state.offsets.commit("LG", "T", 0, 0)
        monkeypatch.setattr(Store, "append", counted)
        consumer = LeaseClient(client)
        for _ in range(LEASED // 4):
            leased = await consumer.pop("T", maxMsgNums=4)
            connection, line = connected(broker._servers[0])
            for number, each in enumerate(leased):
                connection.data_received(frame(number, ack_fields(each)))
                for _ in range(3):
                    await asyncio.sleep(0)  # what was gathered is written, and then answered
            assert len(FrameDecoder().feed(bytes(line.written))) == 4
            connection.connection_lost(None)
        monkeypatch.setattr(Store, "append", append)
        assert sum(map(len, acknowledged(broker).values())) == LEASED
    return stored_in(directory), in_python


async def test_entries_of_leases_are_the_same_bytes_both_ways_also_where_a_log_file_ends(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    files, in_python = await entries_of_many_files(tmp_path / "compiled", accelerator)
    accelerator.setenv(SWITCH, "0")
    files_of_python, all_entries = await entries_of_many_files(tmp_path / "python", accelerator)
    assert files == files_of_python
    logs = sum(name.startswith("commitlog") for name in files)
    assert logs > 2
    assert 0 < in_python <= logs  # what a file has no room for
    assert all_entries == LEASED // 4 + LEASED


async def test_a_lease_that_is_forgotten_while_its_ack_is_stored_gives_back_what_it_holds_once(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    """Storing the ack indexes what waits; who is woken by that takes a lease, which is one too many."""
    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client, wire(broker) as other:
        state = broker.state
        for _ in range(2):
            await client.send("T", b"x")
        consumer = LeaseClient(client)
        first, _ = [(await consumer.pop("T", queueId=0, maxMsgNums=1))[0] for _ in range(2)]
        answer = await LeaseClient(other).hold_pop("T", queueId=1, maxMsgNums=1)
        await until(lambda: len(state.pops.pops) == 1, what="the pop is held")
        accelerator.setattr(open_leases, "MOST_LEASES", 2)
        connection, line = connected(broker._servers[0])
        header = send_header("T", 1, {"UNIQ_KEY": "A1"})
        connection.data_received(frame(1, header.to_fields(), code=SEND_V2, body=b"wakes") * (DISPATCH_AT - 1))
        connection.data_received(frame(2, ack_fields(first)))
        assert (await answer).code == 0
        connection.connection_lost(None)
        told = [commands.decode(found) for found in FrameDecoder().feed(bytes(line.written))]
        assert [(answer.opaque, answer.code) for answer in told] == [(1, 0)] * (DISPATCH_AT - 1) + [(2, 0)]
        assert [state.open_leases.in_flight("T", "LG", queue_id) for queue_id in (0, 1)] == [1, 1]


async def test_acks_that_wait_for_the_disk_go_the_ordinary_way(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker, wire(broker) as client:
        await client.send("T", b"x")
        consumer = LeaseClient(client)
        (leased,) = await consumer.pop("T")
        swift = broker._servers[0]._service.swift
        assert swift is not None
        connection, _ = connected(broker._servers[0])
        assert swift(connection, frame(1, ack_fields(leased))) == (0, b"")
        connection.connection_lost(None)
        assert (await consumer.ack(leased)).code == 0
        assert broker.state.open_leases.in_flight("T", "LG", 0) == 0
