"""Batches are stored whole or not at all, whenever the process is killed or the disk is full; large ones by a call of the system."""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.accelerated import compiled
from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_record
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit, mark_running
from orbitmq.storage.open_files import MappedFile, storage_error
from orbitmq.storage.store import Store
from orbitmq.storage.unfinished_batch import UnfinishedBatch
from tests.broker.kit import SEND_BATCH, running, send_header, wire
from tests.line import connected
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orbitmq.broker.broker import Broker

    Parts = Sequence[bytes | bytearray | memoryview]

pytestmark = pytest.mark.usefixtures("loops")

BODIES = [bytes([number]) * 1024 for number in range(40)]


def batch(number: int = 0, bodies: Sequence[bytes] = tuple(BODIES)) -> bytes:
    members = [
        BatchMember(body, encode_properties({"UNIQ_KEY": f"A{number:03}B{index:03}"}))
        for index, body in enumerate(bodies)
    ]
    fields = send_header("T", 0, {}, {"batch": True}).to_fields()
    return commands.encode(Command(SEND_BATCH, opaque=number, fields=fields, body=encode_batch(members)))


async def read_at_once(broker: Broker, *requests: bytes) -> list[Command]:
    """The answers, in the order of the requests."""
    connection, line = connected(broker._servers[0])
    connection.data_received(b"".join(requests))
    await until(
        lambda: len(FrameDecoder().feed(bytes(line.written))) == len(requests), what="an answer to each request"
    )
    connection.connection_lost(None)
    answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
    return sorted(answers, key=lambda answer: answer.opaque)


async def with_topic(broker: Broker) -> None:
    """A message in the topic, which is saved: who is killed later still has it."""
    async with wire(broker) as client:
        await client.send("T", b"before")
    topics = broker.state.store.config.directory / "config" / "topics.json"
    await until(lambda: topics.exists() and b'"T"' in topics.read_bytes(), what="the topic is saved")


@contextmanager
def images_of_writes(store: Path, image: Path, written: int) -> Iterator[list[int]]:
    """What a kill leaves when so much of a write was in the file; the size of each write."""
    write = MappedFile.write
    sizes: list[int] = []

    def write_and_be_killed(file: MappedFile, parts: Parts, position: int) -> None:
        sizes.append(sum(map(len, parts)))
        write(file, [b"".join(parts)[:written]], position)
        take_image(store, image)
        write(file, parts, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "write", write_and_be_killed)
        yield sizes


@pytest.mark.parametrize("written", [0, 4, 8, 4096, 30_001])
async def test_a_kill_while_a_batch_is_written_leaves_nothing_of_it(tmp_path: Path, written: int) -> None:
    store, image = tmp_path / "store", tmp_path / "image"
    async with running(store, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        with images_of_writes(store, image, written):
            answers = await read_at_once(broker, batch())
        assert [answer.code for answer in answers] == [0]
        assert await client.bodies("T") == [b"before", *BODIES]
    await goes_on_with_nothing_of_it(image)


@pytest.mark.parametrize("written", [8, 50_000, 100_000])
async def test_a_kill_while_the_batches_of_a_read_are_written_leaves_nothing_of_any(
    tmp_path: Path, written: int
) -> None:
    """All of them by one call, and nobody was told of one when it was not over."""
    if compiled("sends") is None:
        pytest.skip("in Python each batch is a call of its own")
    store, image = tmp_path / "store", tmp_path / "image"
    async with running(store, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        with images_of_writes(store, image, written) as sizes:
            answers = await read_at_once(broker, batch(0), batch(1), batch(2))
        assert [(answer.code, answer.fields["queueOffset"]) for answer in answers] == [(0, "1"), (0, "41"), (0, "81")]
        assert await client.bodies("T") == [b"before", *BODIES * 3]
    (size,) = sizes
    assert size > written
    await goes_on_with_nothing_of_it(image)


async def test_a_kill_before_a_small_batch_is_whole_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, image = tmp_path / "store", tmp_path / "image"
    finish = UnfinishedBatch.finish

    def be_killed(unfinished: UnfinishedBatch) -> None:
        take_image(store, image)
        finish(unfinished)

    async with running(store, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        log = broker.state.store.log
        begins = log.end - log.segment_start
        monkeypatch.setattr(UnfinishedBatch, "finish", be_killed)
        answers = await read_at_once(broker, batch(0, [b"one", b"two", b"three"]))
        monkeypatch.setattr(UnfinishedBatch, "finish", finish)
        assert [answer.code for answer in answers] == [0]
        ends = log.end - log.segment_start
        assert await client.bodies("T") == [b"before", b"one", b"two", b"three"]
    segment = next((image / "commitlog").iterdir())
    with segment.open("r+b") as file:  # the third message was not there yet
        file.seek(begins + (ends - begins) * 2 // 3)
        file.write(bytes(ends - file.tell()))
    await goes_on_with_nothing_of_it(image)


def take_image(store: Path, image: Path) -> None:
    shutil.copytree(store, image, ignore=shutil.ignore_patterns("*.tmp"))  # which a thread may be renaming
    mark_running(LocalDisk(), image)


async def goes_on_with_nothing_of_it(image: Path) -> None:
    async with running(image, clock=ManualClock()) as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.KILLED
        assert await client.bodies("T") == [b"before"]
        assert [answer.code for answer in await read_at_once(broker, batch())] == [0]
        assert await client.bodies("T", 0, 1) == BODIES


async def test_a_full_disk_refuses_a_batch_and_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MappedFile.write

    def find_no_room(file: MappedFile, parts: Parts, position: int) -> None:
        write(file, [b"".join(parts)[:10_000]], position)
        raise storage_error("write", file.path, OSError(errno.ENOSPC, "no space"))

    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        log = broker.state.store.log
        end, position = log.end, log.end - log.segment_start
        monkeypatch.setattr(MappedFile, "write", find_no_room)
        (answer,) = await read_at_once(broker, batch())
        assert answer.code == 14
        assert "no space" in (answer.remark or "")
        assert log.end == end
        assert not any(log.memory[position : position + 50_000])
        assert await client.bodies("T") == [b"before"]
        monkeypatch.setattr(MappedFile, "write", write)
        (answer,) = await read_at_once(broker, batch())
        assert (answer.code, answer.fields["queueOffset"]) == (0, "1")
        assert await client.bodies("T", 0, 1) == BODIES


@pytest.mark.parametrize("room", [0, 1, 2, 3])
async def test_of_the_batches_of_a_read_a_full_disk_refuses_those_for_which_it_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    write = MappedFile.write
    left = room * 50_000

    def find_no_room(file: MappedFile, parts: Parts, position: int) -> None:
        nonlocal left
        size = sum(map(len, parts))
        if size > left:
            write(file, [b"".join(parts)[:left]], position)
            raise storage_error("write", file.path, OSError(errno.ENOSPC, "no space"))
        left -= size
        write(file, parts, position)

    other = send_header("New", 1, {}, {"batch": True})
    members = encode_batch([BatchMember(body, b"") for body in BODIES])
    to_another = commands.encode(Command(SEND_BATCH, opaque=3, fields=other.to_fields(), body=members))
    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        await client.send("New", b"other", queue_id=1)
        counted = broker.state.sending.all_puts.value
        monkeypatch.setattr(MappedFile, "write", find_no_room)
        answers = await read_at_once(broker, batch(0), batch(1), batch(2), to_another)
        assert [answer.code for answer in answers] == [0] * room + [14] * (4 - room)
        assert [answer.fields["queueOffset"] for answer in answers[:room]] == ["1", "41", "81"][:room]
        assert broker.state.sending.all_puts.value - counted == 40 * room
        monkeypatch.setattr(MappedFile, "write", write)
        assert await client.bodies("T") == [b"before", *BODIES * room]
        again = await read_at_once(broker, batch(0), to_another)
        assert [answer.fields["queueOffset"] for answer in again] == [str(1 + 40 * room), "1"]
        assert await client.bodies("T") == [b"before", *BODIES * (room + 1)]
        assert await client.bodies("New", 1) == [b"other", *BODIES]


async def test_batches_of_one_read_are_all_indexed_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [bytes(4096)] * 4
    requests = [batch(number, bodies) for number in range(140)]
    one_by_one = []
    append_batch = Store.append_batch

    def note(*arguments: object, **more: object) -> object:
        one_by_one.append(arguments)
        return append_batch(*arguments, **more)  # type: ignore[arg-type]

    async with (
        running(tmp_path, clock=ManualClock(), mappedFileSizeCommitLog=4 << 20) as broker,
        wire(broker) as client,
    ):
        await with_topic(broker)
        monkeypatch.setattr(Store, "append_batch", note)
        answers = await read_at_once(broker, *requests)
        assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(1, 561, 4))
        if compiled("sends") is not None:
            assert not one_by_one, "they were to be taken by the compiled loop"
        messages = await client.messages("T", 0, 1)
        assert [message.properties["UNIQ_KEY"] for message in messages] == [
            f"A{number:03}B{index:03}" for number in range(140) for index in range(4)
        ]
        ids = ",".join(answer.fields["msgId"] for answer in answers).split(",")
        assert [int(text[16:], 16) for text in ids] == [message.commit_log_offset for message in messages]
        for message in (messages[0], messages[-1]):
            found = broker.state.store.find_by_key("T", message.properties["UNIQ_KEY"]).records
            assert message.commit_log_offset in [decode_record(record).commit_log_offset for record in found]
