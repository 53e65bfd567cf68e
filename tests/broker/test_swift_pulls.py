"""The compiled pulls: whatever is asked, they answer the very bytes of the ordinary way, or leave it to that."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import tracemalloc
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from orbitmq.broker import pulling
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.routes import build_routes, build_swift
from orbitmq.broker.subscriptions import Wanted, wanted
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.topics import PERM_WRITE
from orbitmq.protocol.codes import FLAG_ONEWAY
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from orbitmq.storage.queue_index import QueueIndex
from orbitmq.transport.server import Server
from tests.broker.kit import LITE_PULL, MAX_OFFSET, PULL, SEND_V2, Wire, pull_header, running, wire
from tests.golden_frames import golden_frames
from tests.line import connected, plain_answer, swift_answer
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.headers.pull import PullMessage

pytestmark = pytest.mark.usefixtures("accelerator")

MESSAGES = 600
LARGE_BYTES = 300_000  # more than is answered from one call of the system


class Filled:
    """A broker with messages in files and in memory, and what answers without compiled loops."""

    def __init__(self, broker: Broker, client: Wire, ordinary: Server) -> None:
        self.broker = broker
        self.client = client
        self._ordinary = ordinary

    def swift(self, *frames: bytes) -> tuple[int, bytes]:
        """What the compiled way makes of one read."""
        return swift_answer(self.broker, *frames)

    def plain(self, frame: bytes) -> bytes:
        return plain_answer(self._ordinary, frame)

    def takes(self, header: PullMessage, code: int = PULL) -> bool:
        """Whether the compiled way takes it; then it must say what the ordinary one says."""
        request = frame(header, code=code)
        taken, answers = self.swift(request)
        if taken:
            assert answers == self.plain(request)
        return taken == len(request)


def frame(header: PullMessage, opaque: int = 7, code: int = PULL, codec: int = CODEC_JSON, flag: int = 0) -> bytes:
    return commands.encode(Command(code, flag=flag, opaque=opaque, fields=header.to_fields()), codec)


@asynccontextmanager
async def filled(tmp_path: Path, messages: int = MESSAGES, **settings: Any) -> AsyncIterator[Filled]:
    """Files of the log hold about 300 of these messages, files of a queue 100; entries of the last third stay in memory.

    (A read ends with its file, so an answer depends on what is written; nothing may be written between two of them.)
    """
    chance = random.Random(12)
    settings["flushIntervalConsumeQueue"] = 3_600_000
    async with running(tmp_path / "store", **settings) as broker, wire(broker) as client:
        for number in range(messages):
            body = chance.randbytes(LARGE_BYTES if number == messages // 2 else chance.choice((1, 100, 3000)))
            answer = await client.send("T", body, number % 3 % 2, TAGS=chance.choice("abc"))
            assert answer.code == 0
            if number == 2 * messages // 3:
                broker.state.store.flush()
        await client.heartbeat("c", "Members", {"T": "a || b"}, version=5)
        ordinary = Server(build_routes(broker.state))
        await ordinary.start("127.0.0.1", 0)
        yield Filled(broker, client, ordinary)
        await ordinary.stop()


def some_pull(number: int, chance: random.Random) -> bytes:
    """Any that answers at once."""
    changes: dict[str, Any] = {
        "consumer_group": chance.choice(("G", "G", "H", "Members", "Members", "Nobody")),
        "max_msg_nums": chance.choice((32, 32, 32, 1, 7, 0, -1, 64, 1000)),
        "subscription": chance.choice(("*", "*", "a", "a || c", "none", "||", "", None)),
        "expression_type": chance.choice(("TAG", "TAG", None, "", "SQL92")),
        "sys_flag": chance.choice((PULL_SUBSCRIPTION, PULL_SUBSCRIPTION, 0, PULL_SUBSCRIPTION | PULL_LITE)),
        "sub_version": chance.choice((0, 0, 5, 6)),
    }
    odd = chance.random()
    if odd < 0.1:
        changes["max_msg_bytes"] = chance.choice((1, 500, 10_000, -5, 0))
    elif odd < 0.2:
        changes["bulk_bytes"] = chance.choice((1, 20_000, 1 << 20, 0, -1))
    elif odd < 0.25:
        changes["proxy_froward_client_id"] = "someone"
        changes["bname"] = "broker-a"
        changes["request_source"] = -1
    header = pull_header(
        chance.choice(("T",) * 9 + ("Unheard",)), chance.choice((0, 0, 1, 2, 9)), chance.randrange(-2, 420), changes
    )
    code = chance.choice((PULL, PULL, PULL, LITE_PULL))
    codec = chance.choice((CODEC_JSON, CODEC_JSON, CODEC_BINARY))
    return frame(header, number, code, codec)


@pytest.mark.parametrize("settings", [{}, {"slaveReadEnable": "true"}, {"enableCompaction": "false"}], ids=str)
async def test_whatever_is_pulled_the_two_ways_answer_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    chance = random.Random(str(settings))
    async with filled(tmp_path, **settings) as given:
        taken = 0
        for number in range(1500):
            request = some_pull(number, chance)
            size, answers = given.swift(request)
            if size:
                assert size == len(request)
                assert answers == given.plain(request), request
                taken += 1
        assert taken > 250


async def test_pulls_as_javas_clients_write_them_are_taken(tmp_path: Path) -> None:
    recorded = [golden for golden in golden_frames() if golden.code in (PULL, LITE_PULL) and not golden.is_response]
    assert {golden.source for golden in recorded} == {"4.9.7-json", "4.9.7-binary", "5.3.3-json", "5.3.3-binary"}
    async with filled(tmp_path, 3) as given:
        for topic in ("GTB", "GTJ", "GQB", "GQJ"):
            for number in range(20):
                await given.client.send(topic, b"body", number % 4, TAGS="TagA")
        for golden in recorded:
            (found,) = FrameDecoder().feed(golden.data)
            fields = commands.decode(found).fields
            await given.client.heartbeat("c", fields["consumerGroup"], {fields["topic"]: "*"}, version=2**50)
            assert given.swift(golden.data) == (len(golden.data), given.plain(golden.data)), golden


async def test_old_messages_are_given_in_the_same_small_portions(tmp_path: Path) -> None:
    async with filled(tmp_path, accessMessageInMemoryMaxRatio="0") as given:
        for offset in range(0, 300, 7):
            assert given.takes(pull_header("T", 0, offset)), offset
            assert given.takes(pull_header("T", 0, offset, {"subscription": "a || c"})), offset


async def test_both_ways_remember_and_count_the_same(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given:
        state = given.broker.state
        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
        request = frame(pull_header("T", 0, 4, {"sys_flag": flags, "commit_offset": 3, "max_msg_nums": 5}))
        seen = []
        for way in (given.plain, given.swift):
            way(request)
            counters = [
                state.statistics.counter(name, key)
                for name, key in (
                    ("GROUP_GET_NUMS", "T@G"),
                    ("GROUP_GET_SIZE", "T@G"),
                    ("BROKER_GET_NUMS", "DefaultCluster"),
                )
            ]
            seen.append([(counter.value, counter.times) for counter in counters])
            assert (state.offsets.get("G", "T", 0), state.offsets.pulled("G", "T", 0)) == (3, 9)
            state.offsets.commit("G", "T", 0, 0)
            state.offsets.note_pull("G", "T", 0, 0)
        assert seen[1] == [(2 * value, 2 * times) for value, times in seen[0]]
        assert seen[0][0] == (5, 1)


async def test_a_run_of_pulls_is_answered_in_order_up_to_what_is_unusual(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given:
        pulls = [frame(pull_header("T", queue, offset), offset) for queue in (0, 1) for offset in range(10)]
        oneway = frame(pull_header("T", 0, 0), 99, flag=FLAG_ONEWAY)
        taken, answers = given.swift(*pulls, oneway, pulls[0])
        assert taken == sum(map(len, pulls))
        assert answers == b"".join(map(given.plain, pulls))
        assert given.swift(pulls[0][:-1]) == (0, b"")  # half a frame


async def test_a_run_ends_before_it_is_too_much_to_write(tmp_path: Path) -> None:
    async with filled(tmp_path) as given:
        pull = frame(pull_header("T", 0, 0))
        taken, answers = given.swift(*[pull] * 100)
        assert 0 < taken < 100 * len(pull)
        assert taken % len(pull) == 0
        assert answers == given.plain(pull) * (taken // len(pull))


async def test_a_pull_that_waits_is_held_and_answered_like_any(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given:
        held = given.broker.state.pulling.held
        connection, line = connected(given.broker._servers[0])
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT_OFFSET
        changes = {"sys_flag": flags, "suspend_timeout_millis": 60_000, "commit_offset": 9}
        request = frame(pull_header("T", 0, 40, changes))
        connection.data_received(request)
        assert len(held) == 1
        assert bytes(line.written) == b""
        assert given.broker.state.offsets.get("G", "T", 0) == 9

        await given.client.send("T", b"at last", 0)

        await until(lambda: bool(line.written), what="answered")
        assert bytes(line.written) == given.plain(request)
        connection.connection_lost(None)


async def test_what_changes_counts_for_the_next_pull(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given:
        state = given.broker.state
        everything, members = (
            pull_header("T", 0, 0),
            pull_header("T", 0, 0, {"sys_flag": 0, "consumer_group": "Members"}),
        )
        assert given.takes(everything)
        assert given.takes(members)

        before = given.swift(frame(members))[1]
        await given.client.heartbeat("c", "Members", {"T": "c"}, version=6)
        assert given.takes(members)
        assert given.swift(frame(members))[1] != before
        assert not given.takes(msgspec.structs.replace(members, sub_version=7))  # the heartbeat is behind
        await state.groups.set_may_read("Members", "T", False)
        assert not given.takes(members)
        await state.groups.set_may_read("Members", "T", True)
        assert given.takes(members)

        state.offsets.reset("H", "T", 0, 3)
        assert not given.takes(everything)
        state.offsets.take_reset("H", "T", 0)
        assert given.takes(everything)

        topic = state.topics.require("T")
        await state.topics.update([(msgspec.structs.replace(topic, perm=PERM_WRITE), "")])
        assert not given.takes(everything)
        await state.topics.update([(topic, "")])
        assert given.takes(everything)

        configuration = given.broker.configuration
        configuration.apply(*configuration.changed({"brokerPermission": "2"}))
        assert not given.takes(everything)
        configuration.apply(*configuration.changed({"brokerPermission": "6"}))
        assert given.takes(everything)
        state.groups.disable("G")
        assert not given.takes(everything)


async def test_entries_that_are_kept_are_read_again_once_some_were_changed_or_cut_off(tmp_path: Path) -> None:
    async with filled(tmp_path) as given:
        queues = given.broker.state.store.queues
        queue = queues.queues["T", 0]
        assert isinstance(queue, QueueIndex)
        assert given.takes(pull_header("T", 0, 10))  # and those behind them are kept

        physical, size, _ = queue.entry(44)
        queues.lead_nowhere(physical, physical + size)
        taken, answers = given.swift(frame(pull_header("T", 0, 40)))
        assert (taken > 0, answers) == (True, given.plain(frame(pull_header("T", 0, 40))))
        assert given.takes(pull_header("T", 0, 50))

        physical, _, _ = queue.entry(60)
        queues.truncate(physical)
        assert queue.next_offset == 60
        assert given.takes(pull_header("T", 0, 50))
        assert not given.takes(pull_header("T", 0, 60))


async def test_many_groups_that_go_along_many_queues_get_the_same_as_one(tmp_path: Path) -> None:
    async with filled(tmp_path, 300) as given:
        for offset in (0, 20, 40, 60, 80):
            for group in range(150):  # more lanes than entries are kept for
                changes = {"consumer_group": f"G{group}", "max_msg_nums": 20}
                taken, answers = given.swift(*(frame(pull_header("T", queue, offset, changes)) for queue in (0, 1)))
                assert taken
                if group % 30 == 0:
                    pulls = [frame(pull_header("T", queue, offset, changes)) for queue in (0, 1)]
                    assert answers.startswith(given.plain(pulls[0]))


async def test_who_asks_for_whole_files_of_entries_does_not_make_the_broker_keep_them(tmp_path: Path) -> None:
    async with running(tmp_path / "store", mappedFileSizeConsumeQueue=200_000) as broker, wire(broker) as client:
        await client.send("T", b"the topic is there")
        store = broker.state.store
        for number in range(4000):
            store.append("T", 0, b"b", b"UNIQ_KEY\x01%d\x02TAGS\x01a\x02" % number, 1, bytes(8))
        store.dispatch()
        store.flush()
        connection, line = connected(broker._servers[0])
        tracemalloc.start()
        try:
            for number in range(60):  # each with a subscription that nobody had before
                changes = {"subscription": f"T{number}", "max_msg_nums": (1 << 31) - 1, "sys_flag": 4}
                connection.data_received(frame(pull_header("T", 0, 0, changes)))
                line.written.clear()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        connection.connection_lost(None)
    assert kept < 2_000_000  # each of them was given 80,000 bytes


async def test_a_topic_that_was_deleted_is_not_pulled_from_memory(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given:
        header = pull_header("T", 0, 0)
        assert given.takes(header)
        await given.broker.state.topics.delete(["T"])
        assert not given.takes(header)


async def test_pulls_cut_anywhere_over_a_socket_get_the_same_answers(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with filled(tmp_path) as given, raw_client(given.broker.address) as client:
        requests = [some_pull(number, chance) for number in range(300)]
        wanted = {number: given.plain(request) for number, request in enumerate(requests)}
        # A connection is read by the compiled reader once such a request of it was taken.
        client.send(frame(pull_header("T", 0, 0), 1000))
        assert (await client.answer()).opaque == 1000
        data, pieces = b"".join(requests), []
        while data:
            size = chance.choice((1, 50, 300, 1000, 5000))
            pieces.append(data[:size])
            data = data[size:]
        sending = asyncio.create_task(client.send_in_pieces(pieces))
        for _ in requests:
            found = await client.frame()
            assert found is not None
            answer = commands.decode(found)
            (expected,) = FrameDecoder().feed(wanted[answer.opaque])
            assert found == expected
        await sending


async def test_one_that_reads_slowly_gets_every_byte_in_order(tmp_path: Path) -> None:
    async with filled(tmp_path) as given:
        assert given.broker.address is not None
        request = frame(pull_header("T", 0, 0))
        answer = given.plain(request)
        count = (8 << 20) // len(answer)  # far more than the system keeps for such a socket
        loop = asyncio.get_running_loop()
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        await loop.sock_connect(lazy, given.broker.address)
        sending = asyncio.create_task(loop.sock_sendall(lazy, request * count))
        await until(lambda: any(c.is_behind for c in given.broker._servers[0].connections), what="paused")
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = bytearray()
        while len(received) < count * len(answer):
            received += await loop.sock_recv(lazy, 1 << 20)
        await sending
        assert bytes(received) == answer * count
        lazy.close()


async def test_sends_and_pulls_of_one_read_are_all_answered(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as given, raw_client(given.broker.address) as client:
        pull = pull_header("T", 0, 0).to_fields()
        other = {"topic": "T", "queueId": "0"}
        kinds = [PULL, MAX_OFFSET, PULL, PULL, MAX_OFFSET]
        for _ in range(3):
            client.send(b"".join(client.request(code, pull if code == PULL else other) for code in kinds))
            answers = [await client.answer() for _ in kinds]
            assert [bool(answer.body) for answer in answers] == [code == PULL for code in kinds]
            assert all(answer.code == 0 for answer in answers)


async def test_a_port_that_serves_no_pulls_takes_none(tmp_path: Path) -> None:
    async with filled(tmp_path, 3) as given:
        pull = frame(pull_header("T", 0, 0))
        connection, _ = connected(given.broker._servers[0])
        for codes, taken in (((SEND_V2,), 0), ((SEND_V2, PULL), len(pull))):
            swift, _ = build_swift(given.broker.state, codes)
            assert swift is not None
            assert swift(connection, pull)[0] == taken
        connection.connection_lost(None)


@pytest.mark.parametrize("flag", [-(1 << 31), (1 << 31) - 1, 1 << 31, -(1 << 63), 1 << 63, 1 << 70])
async def test_a_flag_that_no_number_of_java_holds_is_answered_the_ordinary_way(tmp_path: Path, flag: int) -> None:
    async with filled(tmp_path, 3) as given:
        topics = given.broker.state.topics
        changed = msgspec.structs.replace(topics.require("T"), topic_sys_flag=flag)
        await topics.update([(changed, "")])
        assert given.takes(pull_header("T", 0, 0)) == (-(1 << 31) <= flag < 1 << 31)
        assert given.broker.address is not None
        async with raw_client(given.broker.address) as client:
            answer = await client.ask(PULL, pull_header("T", 0, 0).to_fields())
            assert (answer.code, answer.fields["topicSysFlag"]) == (0, str(flag))


async def test_an_error_in_the_compiled_pulls_costs_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(tmp_path, 60) as given, raw_client(given.broker.address) as client:
        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
        fields = pull_header("T", 0, 0, {"sys_flag": flags, "commit_offset": 3}).to_fields()
        expected = (await client.ask(PULL, fields)).body  # from now on it is read by the compiled reader
        commit, calls = ConsumerOffsets.commit, 0

        def fail_at_second(self: ConsumerOffsets, *given: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("as no one has thought of")
            commit(self, *given)

        monkeypatch.setattr(ConsumerOffsets, "commit", fail_at_second)
        client.send(b"".join(client.request(PULL, fields) for _ in range(4)))
        for _ in range(4):
            answer = await client.answer()
            assert (answer.code, answer.body) == (0, expected)
        assert calls == 5
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "compiled" in record.getMessage()


async def test_of_pulls_that_are_not_usual_no_filter_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    def watched(*given: Any, **named: Any) -> Wanted:
        found = wanted(*given, **named)

        def accept(record: memoryview) -> bool:
            assert found.accept is not None
            return found.accept(record)

        made.append(weakref.ref(accept))
        return found._replace(accept=accept)

    async with filled(tmp_path, 3, enablePropertyFilter="true") as given:
        monkeypatch.setattr(pulling, "wanted", watched)
        request = frame(pull_header("T", 0, 0, {"subscription": "a = 1", "expression_type": "SQL92"}))
        for _ in range(2):  # it is known the second time
            assert given.swift(request) == (0, b"")
        gc.collect()
        assert [one() for one in made] == [None]


async def test_a_very_long_header_is_left_to_the_limits_of_the_ordinary_way(tmp_path: Path) -> None:
    async with filled(tmp_path, 3) as given:
        assert given.takes(pull_header("T", 0, 0, {"bname": "b" * 100_000}))
        assert not given.takes(pull_header("T", 0, 0, {"bname": "b" * (1 << 17)}))
