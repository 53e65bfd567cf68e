"""Sockets that the compiled reader reads in place of the event loop: nobody can tell, whatever a peer does."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.broker.refusing import LIMIT, Refusing
from orbitmq.broker.sending import Sending
from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_record
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.storage.indexer import Indexer
from orbitmq.transport.connection import Connection
from tests.broker.kit import MAX_OFFSET, PULL, SEND_BATCH, SEND_V2, pull_header, running, send_header, wire
from tests.broker.lease_kit import ACK, POP, LeaseClient, ack_fields
from tests.raw_client import RawClient, raw_client, until

SYSTEM_BUSY = 2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.broker.sending import PlainTopic


@pytest.fixture(autouse=True)
def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    if compiled("sockets") is None:
        pytest.skip("orbitmq-accelerator is not installed, or reads no sockets on this system")


def usual(client: RawClient, number: int, size: int = 100) -> bytes:
    fields = send_header("T", number % 4, {"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": "a"}).to_fields()
    return client.request(SEND_V2, fields, bytes([number % 256]) * size)


def read_swiftly(broker: Broker) -> list[Connection]:
    return [c for server in broker._servers for c in server.connections if c._reading._descriptor >= 0]


@asynccontextmanager
async def seated(broker: Broker) -> AsyncIterator[RawClient]:
    """A client that the reader reads."""
    assert broker.address is not None
    before = len(read_swiftly(broker))
    async with wire(broker) as maker:
        await maker.send("T", b"the topic is there")
    async with raw_client(broker.address) as client:
        client.send(usual(client, 0))
        await client.answer()
        await until(lambda: len(read_swiftly(broker)) > before, what="read swiftly")
        yield client


def begun(connection: Connection) -> bytes:
    return bytes(connection.beginning or b"")


def cut(data: bytes, chance: random.Random) -> Iterator[bytes]:
    while data:
        size = chance.choice((1, 7, 100, 700, 4000, 40_000))
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_requests_of_all_kinds_cut_anywhere_are_answered_once_each(tmp_path: Path, flush: str) -> None:
    chance = random.Random(7)
    async with running(tmp_path / "store", flushDiskType=flush) as broker, seated(broker) as client:
        requests: list[bytes] = []
        stored = 2
        for number in range(1, 400):
            if chance.random() < 0.8:
                requests.append(usual(client, number, chance.choice((1, 100, 3000))))
                stored += 1
            elif chance.random() < 0.5:
                requests.append(client.request(MAX_OFFSET, {"topic": "T", "queueId": "0"}))
            else:
                requests.append(client.request(SEND_V2, send_header("T", 99, {"UNIQ_KEY": "A"}).to_fields(), b"x"))
        sending = asyncio.create_task(client.send_in_pieces(cut(b"".join(requests), chance)))
        answers = [await client.answer() for _ in requests]
        await sending

        assert sorted(answer.opaque for answer in answers) == list(range(2, 2 + len(requests)))
        async with wire(broker) as reader:
            offsets = [await reader.ask(MAX_OFFSET, {"topic": "T", "queueId": queue}) for queue in range(4)]
        assert sum(int(answer.fields["offset"]) for answer in offsets) == stored
        times = {
            kind.request_code: sum(spent.counts) for kind, spent in broker.state.times.all() if not kind.answer_code
        }
        assert times[SEND_V2] == stored


async def test_many_at_once_each_get_their_own_answers(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, seated(broker):
        assert broker.address is not None
        clients = [RawClient(*await asyncio.open_connection(*broker.address)) for _ in range(100)]
        for turn in range(1, 6):
            for number, client in enumerate(clients):
                fields = send_header("T", 0, {"UNIQ_KEY": f"{turn}A{number}"}).to_fields()
                client.send(client.request(SEND_V2, fields, b"x"))
            for number, client in enumerate(clients):
                answer = await client.answer()
                assert (answer.opaque, answer.code) == (turn, 0)
                assert answer.fields["transactionId"] == f"{turn}A{number}"
        assert len(read_swiftly(broker)) == 101
        for client in clients:
            await client.close()
        await until(lambda: len(read_swiftly(broker)) == 1, what="only the first is left")


def batch(client: RawClient, number: int, members: int, size: int) -> bytes:
    inside = [
        BatchMember(bytes([number % 256]) * size, encode_properties({"UNIQ_KEY": f"{number:X}B{index}"}))
        for index in range(members)
    ]
    fields = send_header("T", number % 4, {"UNIQ_KEY": f"{number:X}B"}, {"batch": True}).to_fields()
    return client.request(SEND_BATCH, fields, encode_batch(inside))


async def test_batches_cut_by_reads_are_stored_whole_and_in_order(tmp_path: Path) -> None:
    """As they come from busy producers: most reads end in the midst of a frame, some frames are larger than any read."""
    chance = random.Random(3)
    async with running(tmp_path / "store") as broker, seated(broker) as client:
        before = broker.state.store.queue_range("T", 1).max_offset
        sizes = [(chance.choice((1, 30, 32)), chance.choice((1, 1000, 1024))) for _ in range(60)]
        sizes[20], sizes[40] = (130, 1000), (300, 1024)
        requests = [batch(client, 4 * number + 1, *each) for number, each in enumerate(sizes)]
        sending = asyncio.create_task(client.send_in_pieces(cut(b"".join(requests), chance)))
        answers = [await client.answer() for _ in requests]
        await sending

        assert [answer.code for answer in answers] == [0] * len(requests)
        stored = [(4 * number + 1, size) for number, (members, size) in enumerate(sizes) for _ in range(members)]
        store = broker.state.store
        await until(lambda: store.queue_range("T", 1).max_offset == before + len(stored), what="all indexed")
        for at, (number, size) in enumerate(stored, before):
            (record,) = store.read("T", 1, at, 1).buffers
            assert decode_record(record).body == bytes([number % 256]) * size


@pytest.mark.parametrize("kind", ["send", "batch", "pull", "other"])
@pytest.mark.parametrize("held", [1, 7, 8, 60, -1])
async def test_a_frame_that_had_begun_is_answered_with_the_read_that_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, held: int
) -> None:
    joined: list[bytes] = []
    forget = Connection.forget_beginning

    def note(connection: Connection) -> None:
        joined.append(begun(connection))
        forget(connection)

    async with running(tmp_path / "store") as broker, seated(broker) as client:
        (connection,) = read_swiftly(broker)
        frame = {
            "send": lambda: usual(client, 1),
            "batch": lambda: batch(client, 1, 3, 10),
            "pull": lambda: client.request(PULL, pull_header("T", 0, 0).to_fields()),
            "other": lambda: client.request(MAX_OFFSET, {"topic": "T", "queueId": "0"}),
        }[kind]()
        monkeypatch.setattr(Connection, "forget_beginning", note)
        client.send(frame[:held])
        await until(lambda: begun(connection) == frame[:held], what="the beginning is there")
        client.send(frame[held:] + usual(client, 2))
        answers = [await client.answer() for _ in range(2)]

        assert joined[0] == frame[:held]
        assert [(answer.opaque, answer.code) for answer in answers] == [(2, 0), (3, 0)]
        assert begun(connection) == b""
        assert not connection.is_mid_frame


async def test_a_frame_that_trickles_in_is_known_as_the_same_one(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, seated(broker) as client:
        (connection,) = read_swiftly(broker)
        frame = usual(client, 1)
        client.send(frame[:10])
        await until(lambda: begun(connection) == frame[:10], what="the beginning is there")
        before = connection._decoder.unfinished
        client.send(frame[10:20])
        await until(lambda: begun(connection) == frame[:20], what="more of it")
        after = connection._decoder.unfinished
        assert before is not None
        assert after is not None
        assert after[0] is before[0]
        assert (before[1], after[1]) == (10, 20)
        client.send(frame[20:])
        assert (await client.answer()).code == 0


@pytest.mark.parametrize("rest", [0, 40], ids=["between frames", "in the middle of one"])
async def test_one_that_ends_is_forgotten(tmp_path: Path, rest: int) -> None:
    async with running(tmp_path / "store") as broker:
        async with seated(broker) as client:
            client.send(usual(client, 1) + usual(client, 2)[:rest])
            assert (await client.answer()).code == 0
        await until(lambda: not broker._servers[0].connections, what="gone")
        assert read_swiftly(broker) == []


async def test_one_that_does_not_read_is_paused_and_gets_all_of_it_once_it_reads(tmp_path: Path) -> None:
    count = 40_000
    async with running(tmp_path / "store", mappedFileSizeCommitLog=64 << 20) as broker, seated(broker):
        assert broker.address is not None
        loop = asyncio.get_running_loop()
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        await loop.sock_connect(lazy, broker.address)
        fields = send_header("T", 0, {"UNIQ_KEY": "A1"}).to_fields()
        request = commands.encode(Command(SEND_V2, opaque=1, fields=fields, body=b"x"))
        sending = asyncio.create_task(loop.sock_sendall(lazy, request * count))
        await until(lambda: any(c._write_paused for c in broker._servers[0].connections), what="paused")
        assert not sending.done()
        assert len(read_swiftly(broker)) == 1  # the other one

        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        decoder, answered = FrameDecoder(), 0
        while answered < count:
            answered += len(decoder.feed(await loop.sock_recv(lazy, 1 << 20)))
        await sending
        await loop.sock_sendall(lazy, request)
        await loop.sock_recv(lazy, 4096)
        await until(lambda: len(read_swiftly(broker)) == 2, what="read swiftly again")
        lazy.close()


async def test_a_limit_set_later_holds_for_one_that_is_read_swiftly(tmp_path: Path) -> None:
    async with running(tmp_path / "store", clock=ManualClock()) as broker, seated(broker) as client:
        configuration = broker.configuration
        configuration.apply(*configuration.changed({"orbitmq.requestsPerSecondPerAddress": "3"}))
        client.send(b"".join(usual(client, number) for number in range(10)))
        assert [(await client.answer()).code for _ in range(10)] == [0] * 3 + [SYSTEM_BUSY] * 7


async def test_one_that_is_silent_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, seated(broker) as client:
        (connection,) = read_swiftly(broker)
        connection.last_activity -= 1000
        connection._written_at = 0.0
        connection._close_if_idle()
        assert await client.is_closed_by_the_server()
        await until(lambda: not read_swiftly(broker), what="forgotten")


async def test_a_stop_answers_what_was_taken_and_closes(tmp_path: Path) -> None:
    async with running(tmp_path / "store", flushDiskType="SYNC_FLUSH") as broker, seated(broker) as client:
        client.send(usual(client, 1))
        assert (await client.answer()).code == 0
        await broker._servers[0].stop()
        assert await client.is_closed_by_the_server()
        assert read_swiftly(broker) == []


async def test_an_error_while_reading_ends_that_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "store") as broker, seated(broker) as one, seated(broker) as other:
        unusual = one.request(MAX_OFFSET, {"topic": "T", "queueId": "0"})
        first = read_swiftly(broker)[0]
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        def fail(frames: object) -> None:
            raise ValueError("a mistake of ours")

        monkeypatch.setattr(type(first), "_answer_single", lambda self, data: False)
        monkeypatch.setattr(
            type(first._serving), "process", lambda self, frames: fail(frames) if self is first._serving else None
        )
        one.send(unusual)
        assert await one.is_closed_by_the_server()
        monkeypatch.undo()
        monkeypatch.setenv(SWITCH, "1")

        assert [str(context["exception"]) for context in told] == ["a mistake of ours"]
        other.send(usual(other, 3))
        assert (await other.answer()).code == 0
        assert len(read_swiftly(broker)) == 1


async def test_a_server_with_limits_of_its_own_for_frames_never_has_them_passed_by(tmp_path: Path) -> None:
    """The reader looks at no such limits, so it reads nobody there: not even who was refused under load, from the bytes alone."""
    limits: dict[str, Any] = {"orbitmq.maxHeaderBytes": 8192}
    async with running(tmp_path, **limits) as broker, wire(broker) as maker:
        assert broker.address is not None
        await maker.send("T", b"the topic is there")
        state = broker.state
        refusing = Refusing(state.congestion, state.configuration, state.times, state.refusals)
        refusing.share = 0.0
        refusing.say(300, 200)
        async with raw_client(broker.address) as client:
            state.congestion.refuse = refusing
            client.send(usual(client, 0))
            assert (await client.answer()).code == SYSTEM_BUSY
            state.congestion.refuse = None
            client.send(usual(client, 1))
            assert (await client.answer()).code == 0
            assert read_swiftly(broker) == []


@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_of_reads_that_are_too_many_a_share_is_taken_and_each_send_answered_wherever_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    chance = random.Random(11)
    async with running(tmp_path / "store") as broker, seated(broker) as client:
        state = broker.state
        monkeypatch.setattr(state.refusing, "look", lambda now: None)
        state.refusing.say(300, 200)
        state.refusing.share, state.congestion.refuse = share, state.refusing
        requests = [usual(client, number, chance.choice((1, 100, 3000))) for number in range(1, 600)]
        if share:  # what follows something else in a read is served
            requests.insert(300, client.request(MAX_OFFSET, {"topic": "T", "queueId": "0"}))
        sending = asyncio.create_task(client.send_in_pieces(cut(b"".join(requests), chance)))
        answers = [await client.answer() for _ in requests]
        await sending

        assert sorted(answer.opaque for answer in answers) == list(range(2, 2 + len(requests)))
        refused = [answer for answer in answers if answer.code == SYSTEM_BUSY]
        assert all("[TIMEOUT_CLEAN_QUEUE]" in (answer.remark or "") for answer in refused)
        assert state.refusals.by_key[LIMIT] == len(refused) > 0
        state.congestion.refuse = None
        async with wire(broker) as reader:
            offsets = [await reader.ask(MAX_OFFSET, {"topic": "T", "queueId": queue}) for queue in range(4)]
        stored = sum(int(answer.fields["offset"]) for answer in offsets)
        assert stored == 2 + 599 - len(refused)
        if not share:
            assert len(refused) == 599
        counted = {
            kind.answer_code: sum(spent.counts) for kind, spent in state.times.all() if kind.request_code == SEND_V2
        }
        assert counted == {0: stored, **({SYSTEM_BUSY: len(refused)} if refused else {})}


async def test_a_frame_that_has_begun_is_kept_when_the_event_loop_reads_again(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, seated(broker) as client:
        whole = usual(client, 1) + usual(client, 2)
        client.send(whole[:-30])
        assert (await client.answer()).code == 0
        (connection,) = read_swiftly(broker)
        await until(lambda: connection.is_mid_frame, what="a frame has begun")
        connection.read_by_loop()
        assert read_swiftly(broker) == []
        client.send(whole[-30:])
        assert (await client.answer()).code == 0


async def test_who_asks_in_the_turn_in_which_a_send_was_answered_finds_it(tmp_path: Path) -> None:
    """In a soak, a reader who knew of a receipt was told that the queue ended before it."""
    async with running(tmp_path) as broker, seated(broker) as sender, seated(broker) as reader:
        store, found = broker.state.store, []
        for number in range(20):
            sender.send(usual(sender, 1))  # alone, so that its socket is looked at first
            await sender.answer()
            await until(lambda: store.dispatched_offset == store.log.end)
            end = store.queue_range("T", 0).max_offset
            is_usual = number % 2
            unusual = sender.request(SEND_V2, send_header("T", 0).to_fields(), b"without a key of its own")
            sender.send(usual(sender, 4 * number) if is_usual else unusual)
            reader.send(reader.request(PULL, pull_header("T", 0, end).to_fields()))
            assert (await sender.answer()).code == 0
            if (await reader.answer()).code == 0:
                found.append(is_usual)
        assert set(found) == {0, 1}


async def test_short_answers_of_a_turn_leave_together_and_before_whoever_closes_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first one an answer is owed while the second one's send is looked at, and the first one is closed meanwhile."""
    async with running(tmp_path) as broker, seated(broker) as one, seated(broker) as other:
        first, _ = read_swiftly(broker)
        plain_topic, is_in_turn = Sending.plain_topic, []

        def close_the_first(sending: Sending, topic: str) -> PlainTopic | None:
            if topic == "Another":
                is_in_turn.append(not first.closed and bool(read_swiftly(broker)))
                first.abort()
            return plain_topic(sending, topic)

        monkeypatch.setattr(Sending, "plain_topic", close_the_first)
        one.send(usual(one, 1))
        other.send(other.request(SEND_V2, send_header("Another", 0, {"UNIQ_KEY": "A1"}).to_fields(), b"x"))

        assert (await one.answer()).fields["transactionId"].endswith("1")
        assert await one.is_closed_by_the_server()
        assert (await other.answer()).code == 0
        assert is_in_turn[0]


async def test_who_sends_and_then_speaks_nonsense_hears_what_became_of_the_sends(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, seated(broker) as client:
        nonsense = (16).to_bytes(4, "big") + (0x00FFFFFF).to_bytes(4, "big") + bytes(12)
        client.send(usual(client, 1) + usual(client, 2) + nonsense)
        assert [(await client.answer()).code for _ in range(2)] == [0, 0]
        assert await client.is_closed_by_the_server()


async def test_acks_of_many_sockets_in_a_turn_are_indexed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is stored, and none of them asks for what those before it stored."""
    async with running(tmp_path) as broker, seated(broker), wire(broker) as maker, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(seated(broker)) for _ in range(20)]
        leased = await LeaseClient(maker).pop("T", queueId=0)
        assert len(leased) >= len(clients)
        rounds = 0
        catch_up = Indexer.catch_up

        def count(indexer: Indexer, to: int) -> None:
            nonlocal rounds
            rounds += 1
            catch_up(indexer, to)

        monkeypatch.setattr(Indexer, "catch_up", count)
        for client, each in zip(clients, leased, strict=False):
            client.send(client.request(ACK, ack_fields(each)))
        assert [(await client.answer()).code for client in clients] == [0] * len(clients)
        assert rounds < len(clients) // 2
        in_flight = broker.state.open_leases.in_flight("T", "LG", 0)
        assert in_flight == len(leased) - len(clients)


async def test_a_pop_behind_an_ack_finds_what_was_sent_in_the_same_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, seated(broker) as sender, seated(broker) as consumer, wire(broker) as maker:
        for number in range(10):
            leased = await LeaseClient(maker).pop("T", queueId=0)
            sender.send(usual(sender, 4 * number))
            ack = consumer.request(ACK, ack_fields(leased[0]))
            consumer.send(ack + consumer.request(POP, LeaseClient(maker).pop_fields("T", queueId=0)))
            assert (await sender.answer()).code == 0
            assert [(await consumer.answer()).code for _ in range(2)] == [0, 0]
            sender.send(usual(sender, 4 * number))
            assert (await sender.answer()).code == 0


async def test_what_fails_when_messages_are_indexed_ends_no_connection_that_is_read_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "store") as broker, seated(broker) as sender, seated(broker) as puller:
        failures: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context.get("exception")))
        error = StoreFull("no room for the queues")

        def fail(_self: object, _to: int) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Indexer, "catch_up", fail)
            for number in range(5):
                sender.send(usual(sender, number))
                puller.send(puller.request(PULL, pull_header("T", 0, 0).to_fields()))
                assert (await sender.answer()).code == 0
                assert (await puller.answer()).code == 0
        assert failures
        assert all(failure is error for failure in failures)
        sender.send(usual(sender, 0))
        assert (await sender.answer()).code == 0
        await until(lambda: broker.state.store.dispatched_offset == broker.state.store.log.end, what="all indexed")


async def test_what_fails_when_many_messages_are_indexed_ends_no_connection_that_acknowledges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running(tmp_path))
        senders = [await stack.enter_async_context(seated(broker)) for _ in range(3)]
        consumer = await stack.enter_async_context(seated(broker))
        leased = await LeaseClient(await stack.enter_async_context(wire(broker))).pop("T", queueId=0)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def fail(_self: Indexer, _batch: object) -> None:
            raise RuntimeError("a queue cannot be entered")

        with monkeypatch.context() as patch:
            patch.setattr(Indexer, "index", fail)
            for sender in senders:
                sender.send(b"".join(usual(sender, number, 20) for number in range(130)))
            consumer.send(consumer.request(ACK, ack_fields(leased[0])))
            for sender in senders:
                assert {(await sender.answer()).code for _ in range(130)} == {0}
            assert (await consumer.answer()).code == 0


async def test_while_sends_are_refused_a_share_of_them_is_taken_whatever_they_need(tmp_path: Path) -> None:
    """Also those that the compiled loop leaves to the ordinary way: every time when more of the log has to be made ready."""
    async with running(tmp_path) as broker, wire(broker) as maker:
        await maker.send("T", b"the topic is there")
        async with seated(broker) as client:
            refusing = broker.state.refusing
            refusing.look = lambda now: None  # type: ignore[method-assign] # the share stays
            refusing.say(300, 200)
            refusing.share, broker.state.congestion.refuse = 0.25, refusing
            codes = []
            for number in range(400):
                client.send(usual(client, number, 20_000))
                codes.append((await client.answer()).code)
            broker.state.congestion.refuse = None
    assert codes.count(0) == 100
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 300
