"""Held pulls: woken by what they want and nothing else, given up in time, cheap in any number."""

from __future__ import annotations

import asyncio
import socket
import sys
import tracemalloc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.long_poll import LONGEST_HOLD_SECONDS, HeldPull, HeldPulls
from orbitmq.broker.subscriptions import Wanted
from orbitmq.errors import StorageError
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.kit import PULL, Wire, messages_of, pull_header, running, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker


async def held(broker: Broker, count: int) -> None:
    await until(lambda: len(broker.state.pulling.held) == count, what=f"{count} pulls held")


async def test_a_held_pull_is_answered_by_the_message_that_arrives(client: Wire, broker: Broker) -> None:
    await client.send("T", b"old")
    answer = await client.hold("T", 0, 1)
    await held(broker, 1)
    assert not answer.done()

    await client.send("T", b"new")

    assert [message.body for message in messages_of(await answer)] == [b"new"]
    assert len(broker.state.pulling.held) == 0


async def test_a_queue_without_any_message_can_be_waited_for(client: Wire, broker: Broker) -> None:
    await client.send("T", b"makes the topic", 3)
    answer = await client.hold("T", 1, 0)
    await held(broker, 1)

    await client.send("T", b"first", 1)

    assert (await answer).code == 0


async def test_other_queues_topics_and_tags_wake_nobody(client: Wire, broker: Broker) -> None:
    await client.send("T", b"old", TAGS="b")
    answer = await client.hold("T", 0, 1, subscription="a")
    await held(broker, 1)

    await client.send("T", b"other queue", 1, TAGS="a")
    await client.send("U", b"other topic", TAGS="a")
    for _ in range(3):
        await client.send("T", b"other tag", TAGS="b")
    await client.send("U", b"one more round through the broker")
    assert not answer.done()
    await client.send("T", b"mine", TAGS="a")

    woken = await answer
    assert [message.body for message in messages_of(woken)] == [b"mine"]
    assert woken.fields["nextBeginOffset"] == "5"


async def test_a_filter_that_changes_while_a_pull_waits_holds_for_what_arrives_then(
    client: Wire, broker: Broker
) -> None:
    await client.send("T", b"old", TAGS="a")
    await client.heartbeat("c1", "G", {"T": "a"}, version=3)
    answer = await client.hold("T", 0, 1, consumer_group="G", sys_flag=PULL_SUSPEND, sub_version=3)
    await held(broker, 1)
    await client.send("T", b"unwanted", TAGS="b")
    await client.heartbeat("c1", "G", {"T": "a"}, version=4)  # the same filter: nothing changes
    await client.send("T", b"unwanted", TAGS="b")
    assert not answer.done()

    await client.heartbeat("c1", "G", {"T": "b || c"}, version=5)
    await client.send("T", b"wanted", TAGS="c")

    woken = await answer
    assert (woken.code, woken.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


async def test_everyone_who_waits_for_a_queue_is_answered(client: Wire, broker: Broker) -> None:
    await client.send("T", b"old")
    answers = [await client.hold("T", 0, 1, consumer_group=f"G{i}") for i in range(50)]
    await held(broker, 50)

    await client.send("T", b"new")

    for answer in answers:
        assert messages_of(await answer)[0].body == b"new"


async def test_a_pull_whose_time_is_up_is_told_that_nothing_came(client: Wire) -> None:
    await client.send("T", b"old")

    answer = await (await client.hold("T", 0, 1, suspend_timeout_millis=1))

    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (19, "OFFSET_OVERFLOW_ONE", "1")


async def test_what_was_looked_at_while_waiting_is_not_looked_at_again(client: Wire) -> None:
    await client.send("T", b"old", TAGS="b")
    answer = await client.hold("T", 0, 1, subscription="a", suspend_timeout_millis=700)
    for _ in range(4):
        await client.send("T", b"other", TAGS="b")

    assert (await answer).fields["nextBeginOffset"] == "5"


async def test_without_long_polling_the_broker_decides_how_long(tmp_path: Path) -> None:
    async with running(tmp_path, longPollingEnable="false", shortPollingTimeMills=10) as broker, wire(broker) as client:
        await client.send("T")
        assert (await (await client.hold("T", 0, 1))).code == 19


async def test_a_pull_beyond_the_end_or_before_the_beginning_is_not_held(client: Wire) -> None:
    await client.send("T")

    assert (await (await client.hold("T", 0, 7))).code == 21
    assert (await (await client.hold("T", 0, -1))).code == 21


async def test_holding_commits_the_offset_once(client: Wire, broker: Broker) -> None:
    await client.send("T")
    flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT_OFFSET
    answer = await client.hold("T", 0, 1, sys_flag=flags, commit_offset=1)
    await held(broker, 1)
    broker.state.offsets.commit("G", "T", 0, 0)  # meanwhile somebody moved the group

    await client.send("T")
    await answer

    assert broker.state.offsets.get("G", "T", 0) == 0


async def test_a_client_that_hangs_up_leaves_nothing_behind(client: Wire, broker: Broker) -> None:
    await client.send("T")
    async with wire(broker) as other:
        await other.hold("T", 0, 1)
        await held(broker, 1)
        other_connections = len(broker._servers[0].connections)
    await until(lambda: len(broker._servers[0].connections) < other_connections, what="the loss noticed")

    await client.send("T", b"new")

    await held(broker, 0)
    assert (await client.pull("T", 0, 1)).code == 0


async def test_a_stopping_broker_answers_those_who_wait(tmp_path: Path) -> None:
    async with AsyncExitStack() as clients:
        async with running(tmp_path) as broker:
            client = await clients.enter_async_context(wire(broker))
            await client.send("T")
            answers = [await client.hold("T", 0, 1) for _ in range(10)]
            await held(broker, 10)
        for answer in answers:
            assert (await answer).code == 19


async def test_a_queue_that_cannot_be_read_costs_only_its_own_pulls(
    client: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send("Bad")
    await client.send("Good")
    bad, good = await client.hold("Bad", 0, 1), await client.hold("Good", 0, 1)
    also_bad = await client.hold("Bad", 0, 1, suspend_timeout_millis=700, subscription="x")
    await held(broker, 3)
    read = broker.state.store.read

    def failing(topic: str, *arguments: object, **options: object) -> object:
        if topic == "Bad":
            raise StorageError("cannot read the queue's file")
        return read(topic, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.state.store, "read", failing)
    await client.send("Bad")
    await client.send("Good")

    assert (await bad).code == (await also_bad).code == 1
    assert (await good).code == 0
    assert (await (await client.hold("Good", 0, 2, suspend_timeout_millis=1))).code == 19  # time-outs are still noticed


async def test_many_thousand_held_pulls_are_woken_and_given_up(broker: Broker) -> None:
    queues, per_connection, connections = 4, 1000, 8
    async with AsyncExitStack() as clients:
        everyone = [await clients.enter_async_context(wire(broker)) for _ in range(connections)]
        for queue_id in range(queues):
            await everyone[0].send("T", b"old", queue_id)
        answers = [
            await client.hold("T", i % queues, 1, suspend_timeout_millis=60_000)
            for client in everyone
            for i in range(per_connection)
        ]
        await held(broker, connections * per_connection)

        for queue_id in range(queues):
            await everyone[0].send("T", b"new", queue_id)

        async with asyncio.timeout(60):
            assert {(await answer).code for answer in answers} == {0}
        await held(broker, 0)


# ---- the table itself, with a clock of its own


class Answers:
    def __init__(self) -> None:
        self.now = 1000.0
        self.timed_out: list[HeldPull] = []
        self.held = HeldPulls(lambda: self.now, lambda pull: True, self.timed_out.append)

    def hold(self, seconds: float, queue_id: int = 0) -> HeldPull:
        pull = HeldPull(Command(11), _Open(), pull_header("T", queue_id, 0), Wanted())  # type: ignore[arg-type]
        self.held.hold(pull, seconds)
        return pull

    def after(self, seconds: float) -> list[HeldPull]:
        self.now += seconds
        self.held.expire()
        taken, self.timed_out[:] = list(self.timed_out), []
        return taken


class _Open:
    closed = False


def test_pulls_time_out_when_they_are_due_in_any_order_of_coming() -> None:
    answers = Answers()
    late, soon, now = answers.hold(20), answers.hold(5, 1), answers.hold(-3)

    assert answers.after(1) == [now]
    assert answers.after(5) == [soon]
    assert answers.after(5) == []
    assert answers.after(15) == [late]
    assert len(answers.held) == 0


def test_a_jump_of_the_clock_loses_nobody() -> None:
    answers = Answers()
    pulls = [answers.hold(seconds) for seconds in (1, 10, 100)]

    assert answers.after(10_000) == pulls


def test_nobody_is_held_longer_than_a_dead_client_may_be_remembered() -> None:
    answers = Answers()
    pull = answers.hold(10.0**15)

    assert answers.after(LONGEST_HOLD_SECONDS - 1) == []
    assert answers.after(2) == [pull]


def test_an_answered_pull_is_forgotten_at_once_and_not_when_its_time_would_have_been_up() -> None:
    answers = Answers()
    pull = answers.hold(60)
    references = sys.getrefcount(pull)

    answers.held.arrived("T", 0)

    assert sys.getrefcount(pull) == references - 2  # by its queue, and by its deadline


async def test_one_client_cannot_hold_any_number_of_pulls(
    client: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.broker.long_poll.MOST_PER_CONNECTION", 10)
    await client.send("T")
    answers = [await client.hold("T", 0, 1) for _ in range(12)]

    assert {(await answer).code for answer in answers[10:]} == {19}  # told at once that there is nothing
    assert len(broker.state.pulling.held) == 10
    async with wire(broker) as other:
        await other.hold("T", 0, 1)
        await held(broker, 11)
    await client.send("T")
    assert {(await answer).code for answer in answers[:10]} == {0}
    assert len(broker.state.pulling.held) == 0


def many_tags(count: int, prefix: str = "") -> str:
    return "||".join(f"{prefix}{number}" for number in range(count))


async def test_long_lists_of_tags_are_kept_once_for_all_pulls_that_wait_for_the_same(
    client: Wire, broker: Broker
) -> None:
    await client.send("T")
    answers = [await client.hold("T", 0, 1, subscription=many_tags(10_000)) for _ in range(30)]
    await held(broker, 30)
    pulls = broker.state.pulling.held._by_queue["T", 0]
    assert len({id(pull.wishes.tag_codes) for pull in pulls}) == 1

    await client.send("T", TAGS="77")
    assert {(await answer).code for answer in answers} == {0}


async def test_one_client_cannot_wait_for_any_number_of_tags(
    client: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.broker.held_tags.MOST_PER_CONNECTION", 100)
    await client.send("T")
    waiting = [await client.hold("T", 0, 1, subscription=many_tags(50, prefix)) for prefix in "abac"]
    assert (await asyncio.wait_for(waiting[3], 5)).code == 19  # told at once that there is nothing
    waiting[3] = await client.hold("T", 0, 1, subscription=many_tags(5, "c"))  # so few are no matter
    await held(broker, 4)
    async with wire(broker) as other:
        await other.hold("T", 0, 1, subscription=many_tags(50, "c"))
        await held(broker, 5)

    await client.send("T", TAGS="b7")
    assert (await waiting[1]).code == 0
    again = await client.hold("T", 0, 2, subscription=many_tags(50, "d"))  # there is room again
    await client.send("T", TAGS="d7")
    assert (await again).code == 0
    await client.send("T", TAGS="a7")
    assert {(await answer).code for answer in (waiting[0], waiting[2])} == {0}
    await client.send("T", TAGS="c4")
    assert (await waiting[3]).code == 0
    await held(broker, 0)
    assert broker.state.pulling.held.tags.is_empty


def test_a_woken_pull_does_not_time_out_as_well() -> None:
    answers = Answers()
    answers.hold(5)
    answers.held.arrived("T", 0)

    assert answers.after(10) == []
    assert len(answers.held) == 0


@pytest.mark.usefixtures("loops")
async def test_a_client_that_never_reads_is_closed_before_all_its_held_pulls_are_answered(tmp_path: Path) -> None:
    count, size = 640, 250_000  # more than twice what may be left unread, and the system's own
    async with running(tmp_path / "store", mappedFileSizeCommitLog=1 << 22) as broker, wire(broker) as client:
        assert broker.address is not None
        await client.send("T", b"old")
        loop = asyncio.get_running_loop()
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            await loop.sock_connect(lazy, broker.address)
            changes = {"sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspend_timeout_millis": 60_000}
            fields = pull_header("T", 0, 1, changes).to_fields()
            for number in range(count):
                await loop.sock_sendall(
                    lazy, commands.encode(Command(PULL, opaque=number, fields=dict(fields)), CODEC_JSON)
                )
            await held(broker, count)

            await client.send("T", bytes(size))

            await held(broker, 0)
            assert 0 < broker.state.statistics.counter("GROUP_GET_NUMS", "T@G").value < count
            await until(lambda: len(broker._servers[0].connections) == 1, what="the end of the connection")


POLL = {"consumerGroup": "G", "topic": "T", "queueId": 0, "pollTime": 60_000, "bornTime": 0}
POP_FIELDS = {**POLL, "maxMsgNums": 1, "invisibleTime": 60_000, "initMode": 0}
LONG = "x" * 500_000


@pytest.mark.parametrize(
    ("code", "codec", "text", "body_bytes"),
    [
        (PULL, CODEC_JSON, "bname", 0),
        (PULL, CODEC_BINARY, "proxyFrowardClientId", 4 << 20),
        (RequestCode.POP_MESSAGE, CODEC_JSON, "attemptId", 4 << 20),
        (RequestCode.NOTIFICATION, CODEC_JSON, "more", 4 << 20),
    ],
)
async def test_what_was_sent_with_a_request_does_not_wait_with_it(
    client: Wire, broker: Broker, code: int, codec: int, text: str, body_bytes: int
) -> None:
    count = 10
    await client.send("T", b"makes the topic", 1)
    await client.heartbeat("member", "G", {"T": "*"})
    pull = pull_header("T", 0, 0, {"sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspend_timeout_millis": 60_000})
    usual = pull.to_fields() if code == PULL else {key: str(value) for key, value in POP_FIELDS.items()}
    assert broker.address is not None
    _, writer = await asyncio.open_connection(*broker.address)
    leases = broker.state.pops
    tracemalloc.start()
    try:
        for number in range(count):
            request = Command(code, opaque=number, fields={**usual, text: LONG}, body=bytes(body_bytes))
            writer.write(commands.encode(request, codec))
            await writer.drain()
        pulls = broker.state.pulling.held
        await until(lambda: len(pulls) + len(leases.pops) + len(leases.notifications) == count, what="all of them held")
        del request
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        writer.close()

    assert kept < count * len(LONG) / 2


async def test_filters_that_a_group_had_do_not_wait_with_its_pulls(client: Wire, broker: Broker) -> None:
    count = 10
    await client.send("T", b"makes the topic", 1)
    tracemalloc.start()
    try:
        answers = []
        for number in range(count):
            await client.heartbeat("member", "G", {"T": f"{number}" + " " * 500_000}, version=number)
            answers.append(await client.hold("T", 0, 0, sys_flag=PULL_SUSPEND))
            await held(broker, number + 1)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    await client.send("T", TAGS=f"{count - 1}")
    retried = ResponseCode.PULL_RETRY_IMMEDIATELY
    assert [(await answer).code for answer in answers] == [retried] * (count - 1) + [0]
    assert kept < count * 500_000 / 2
