"""Large batches are written to the log by calls of the system: whole records or none, whenever the process is killed or the disk is full."""

from __future__ import annotations

import errno
import shutil
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
from tests.broker.kit import SEND_BATCH, running, send_header, wire
from tests.line import connected
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orbitmq.broker.broker import Broker

    Parts = Sequence[bytes | bytearray | memoryview]

pytestmark = pytest.mark.usefixtures("loops")

BODIES = [bytes([number]) * 1024 for number in range(40)]
SIZE_AND_MAGIC = 8


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


def begins_with_a_head(parts: Parts) -> bool:
    return any(bytes(parts[0])[:SIZE_AND_MAGIC])


@pytest.mark.parametrize(
    ("heads", "written"),
    [(False, 0), (False, 4096), (False, 30_001), (True, 0), (True, 4), (True, 8), (True, 4096), (True, 30_001)],
)
async def test_a_kill_while_a_batch_is_written_leaves_whole_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: bool, written: int
) -> None:
    """So much of it was in the file by then: of what comes before the heads of the records, or of what brings them."""
    store, image = tmp_path / "store", tmp_path / "image"
    write = MappedFile.write
    sizes: list[int] = []

    def write_and_be_killed(file: MappedFile, parts: Parts, position: int) -> None:
        if begins_with_a_head(parts) is heads and not sizes:
            data = b"".join(parts)
            sizes.append(len(data) // len(BODIES))
            write(file, [data[:written]], position)
            shutil.copytree(store, image, ignore=shutil.ignore_patterns("*.tmp"))  # which a thread may be renaming
            mark_running(LocalDisk(), image)
        write(file, parts, position)

    async with running(store, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        monkeypatch.setattr(MappedFile, "write", write_and_be_killed)
        answers = await read_at_once(broker, batch())
        monkeypatch.setattr(MappedFile, "write", write)
        assert [answer.code for answer in answers] == [0]
        assert await client.bodies("T") == [b"before", *BODIES]

    left = sum(number * sizes[0] + SIZE_AND_MAGIC <= written for number in range(len(BODIES))) if heads else 0
    async with running(image, clock=ManualClock()) as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.KILLED
        assert await client.bodies("T") == [b"before", *BODIES[:left]]
        assert [answer.code for answer in await read_at_once(broker, batch())] == [0]
        assert await client.bodies("T", 0, 1 + left) == BODIES


@pytest.mark.parametrize("heads", [False, True])
async def test_a_full_disk_refuses_a_batch_and_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: bool
) -> None:
    write = MappedFile.write

    def find_no_room(file: MappedFile, parts: Parts, position: int) -> None:
        if begins_with_a_head(parts) is heads:
            write(file, [b"".join(parts)[:10_000]], position)
            raise storage_error("write", file.path, OSError(errno.ENOSPC, "no space"))
        write(file, parts, position)

    async with running(tmp_path, clock=ManualClock()) as broker, wire(broker) as client:
        await with_topic(broker)
        log = broker.state.store.log
        end, position = log.end, log.end - log.segment_start
        monkeypatch.setattr(MappedFile, "write", find_no_room)
        (answer,) = await read_at_once(broker, batch())
        assert answer.code == 14
        assert "no space" in (answer.remark or "")
        assert log.end == end
        assert bytes(log.memory[position : position + SIZE_AND_MAGIC]) == bytes(SIZE_AND_MAGIC)
        assert await client.bodies("T") == [b"before"]
        monkeypatch.setattr(MappedFile, "write", write)
        (answer,) = await read_at_once(broker, batch())
        assert (answer.code, answer.fields["queueOffset"]) == (0, "1")
        assert await client.bodies("T", 0, 1) == BODIES


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
