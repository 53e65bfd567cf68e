"""How far a group has come, told to brokers that refuse, forget or reset it, and at a program's end."""

import asyncio
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from orbitmq import QueueRef, ReceivedMessage, connect, saved_file
from orbitmq.client.offsets import LocalOffsets, RemoteOffsets
from orbitmq.protocol.bodies.offsets import QueueOffsets
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer
from orbitmq.protocol.headers.pull import PullMessage, PullResult
from orbitmq.transport.connection import Connection
from tests.client.scripted import ScriptedBroker, eventually, refuse, scripted_cluster

SECONDS = 30.0


async def nothing(message: ReceivedMessage) -> None:
    """A handler that is done at once."""


async def test_a_broker_that_refuses_a_first_commit_keeps_back_no_commits_of_others() -> None:
    async with scripted_cluster(brokers=2, topics={"T": 1}) as cluster:
        willing, refusing = cluster.brokers
        refusal = refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        refusing.inject(RequestCode.UPDATE_CONSUMER_OFFSET, refusal, times=100_000)
        for _ in range(3):
            willing.put("T", 0, b"x")
        async with (
            connect(cluster.address) as client,
            client.consumer("T", group="G", start="earliest", orderly=True, handler=nothing, commit_every=0.05),
        ):
            await eventually(lambda: willing.offsets.get(("G", "T", 0)) == 3, SECONDS)
            willing.put("T", 0, b"y")
            await eventually(lambda: willing.offsets.get(("G", "T", 0)) == 4, SECONDS)
        assert refusing.offsets == {}


@pytest.mark.parametrize("ticks", range(4))
async def test_a_queue_that_is_given_up_while_offsets_are_saved_keeps_back_no_others(ticks: int) -> None:
    async with (
        scripted_cluster(topics={"T": 3}) as cluster,
        connect(cluster.address) as client,
        client.pull_consumer("G") as reader,
    ):
        queues = await reader.queues("T")
        offsets = RemoteOffsets(reader._running().cluster, "G")
        for queue in queues:
            offsets.set(queue, 5)
        saving = asyncio.create_task(offsets.save())
        for _ in range(ticks):
            await asyncio.sleep(0)
        offsets.forget(queues[0])
        assert await saving
        assert [cluster.broker.offsets["G", "T", queue.queue_id] for queue in queues[1:]] == [5, 5]
        cluster.broker.offsets["G", "T", 0] = 7  # its next owner
        offsets.set(queues[0], 5)
        await offsets.save()
        assert cluster.broker.offsets["G", "T", 0] == 5


async def test_a_broker_that_was_killed_is_told_again_what_it_forgot() -> None:
    """The first offset of an empty queue too, or a group that begins at the end would pass over what comes before it is back."""
    async with scripted_cluster(topics={"T": 2}) as cluster:
        broker = cluster.broker
        for _ in range(3):
            broker.put("T", 0, b"x")

        def both_known() -> bool:
            return (broker.offsets.get(("G", "T", 0)), broker.offsets.get(("G", "T", 1))) == (3, 0)

        async with (
            connect(cluster.address) as client,
            client.consumer("T", group="G", start="earliest", orderly=True, handler=nothing, commit_every=0.05),
        ):
            await eventually(both_known, SECONDS)
            port = broker.address.port
            await cluster.stop("broker-a")
            broker.offsets.clear()
            await cluster.start_broker(broker, port)
            await eventually(both_known, SECONDS)


async def test_a_pull_that_is_carried_out_behind_the_last_commit_takes_nothing_back() -> None:
    """Apache's brokers have threads for pulls and others for commits."""
    async with scripted_cluster(topics={"T": 1}) as cluster, connect(cluster.address) as client:
        broker, key, carried_out = cluster.broker, ("G", "T", 0), asyncio.Event()

        async def late(command: Command, connection: Connection) -> Command | None:
            header = command.read(PullMessage)
            if header.topic == "T" and header.commit_offset == 1:
                while broker.offsets[key] != 2:
                    await asyncio.sleep(0)
                broker.offsets[key] = 1
                carried_out.set()
                return None
            return await broker._pull(command, connection)

        broker.inject(RequestCode.PULL_MESSAGE, late, times=1000)
        async with client.consumer("T", group="G", start="earliest", handler=nothing) as consumer:
            broker.put("T", 0, b"first")
            await eventually(lambda: consumer.stats.acked == 1, SECONDS)
            broker.put("T", 0, b"second")
            await eventually(lambda: consumer.stats.acked == 2, SECONDS)
            await eventually(lambda: _brings(broker, 1), SECONDS)
        assert carried_out.is_set()
        assert broker.offsets[key] == 2


def _brings(broker: ScriptedBroker, offset: int) -> bool:
    return any(one.read(PullMessage).commit_offset == offset for one in broker.received(RequestCode.PULL_MESSAGE))


async def test_an_operators_reset_is_obeyed_though_something_before_it_is_not_done_with() -> None:
    async with scripted_cluster(topics={"T": 1}) as cluster:
        broker, poisoned, resets, gate = cluster.broker, 0, 0, asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            nonlocal poisoned
            if message.body == b"3":
                poisoned += 1
                await gate.wait()

        async def reset_once(command: Command, connection: Connection) -> Command:
            nonlocal resets
            if resets or command.read(PullMessage).topic != "T":
                return await broker._pull(command, connection)
            resets += 1
            header = PullResult(suggest_which_broker_id=0, next_begin_offset=10, min_offset=0, max_offset=20)
            return answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", header)

        for number in range(20):
            broker.put("T", 0, b"%d" % number)
        async with (
            connect(cluster.address) as client,
            client.consumer("T", group="G", start="earliest", handler=handler, commit_every=0.05) as consumer,
        ):
            await eventually(lambda: consumer.stats.acked == 19, SECONDS)
            broker.inject(RequestCode.PULL_MESSAGE, reset_once, times=1000)
            broker.put("T", 0, b"20")
            await eventually(lambda: broker.offsets.get(("G", "T", 0)) == 21, SECONDS)
            assert poisoned == 1
            gate.set()


async def test_of_two_saves_the_later_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, begun, overtaken = saved_file.save, threading.Event(), threading.Event()

    def slow_at_first(path: Path, text: str) -> None:
        is_first = not begun.is_set()
        begun.set()
        if is_first:
            overtaken.wait(0.3)  # by one that does not wait for us
        save(path, text)
        if not is_first:
            overtaken.set()

    monkeypatch.setattr("orbitmq.saved_file.save", slow_at_first)
    offsets, queue = LocalOffsets(tmp_path, "client", "G"), QueueRef("T", "broker-a", 0)
    offsets.set(queue, 1)
    first = asyncio.create_task(offsets.save())
    await eventually(begun.is_set, SECONDS)
    offsets.set(queue, 2)
    assert all(await asyncio.gather(first, offsets.save()))
    assert LocalOffsets(tmp_path, "client", "G").known(queue) == 2


async def test_a_program_that_ends_without_closing_gives_nothing_back_and_saves_its_offsets(tmp_path: Path) -> None:
    """Python ends all pools of threads before it calls what is registered with `atexit`."""
    async with scripted_cluster(topics={"T": 1, "U": 1}) as cluster:
        for _ in range(3):
            cluster.broker.put("T", 0, b"x")
            cluster.broker.put("U", 0, b"x")
        handling = f"""
            import threading, time
            from orbitmq.sync import connect

            begun = threading.Event()

            def handler(message):
                begun.set()
                time.sleep(1)  # by then the main thread has ended

            client = connect("{cluster.address}")
            client.consumer("T", group="G", start="earliest", handler=handler, concurrency=1).__enter__()
            begun.wait()
        """
        iterating = f"""
            from pathlib import Path
            from orbitmq.sync import connect

            client = connect("{cluster.address}")
            files = dict(offset_directory=Path({str(tmp_path)!r}), commit_every=1000)
            next(iter(client.consumer("U", group="B", broadcasting=True, start="earliest", **files))).ack()
        """
        for program in (handling, iterating):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "error", "-c", textwrap.dedent(program), stderr=asyncio.subprocess.PIPE
            )
            async with asyncio.timeout(60):
                _, errors = await process.communicate()
            assert (process.returncode, errors.decode()) == (0, "")
        assert cluster.broker.received(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        assert cluster.broker.offsets["G", "T", 0] >= 1
    [path] = tmp_path.rglob("offsets.json")
    assert list(QueueOffsets.from_json(path.read_bytes()).offsets.values()) == [1]
