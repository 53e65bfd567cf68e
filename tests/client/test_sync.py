"""The blocking face: same names, from any thread, after a fork. The cluster runs on an event loop in a thread of its own."""

import asyncio
import contextlib
import functools
import gc
import inspect
import itertools
import operator
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orbitmq import ReceivedMessage, sync
from orbitmq import client as async_client_package
from orbitmq.client import portal
from orbitmq.client.client import Client as AsyncClient
from orbitmq.client.consumer import Consumer as AsyncConsumer
from orbitmq.client.lease_consumer import LeaseConsumer as AsyncLeaseConsumer
from orbitmq.client.leased import LeasedMessage as AsyncLeasedMessage
from orbitmq.client.producer import Producer as AsyncProducer
from orbitmq.client.pull_consumer import PullConsumer as AsyncPullConsumer
from orbitmq.client.transactions import Transaction as AsyncTransaction
from orbitmq.client.transactions import TransactionProducer as AsyncTransactionProducer
from orbitmq.errors import AlreadyClosed, ConfigError, ConnectFailed
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.send import SendBack
from orbitmq.protocol.headers.transactions import EndTransaction
from tests.client.cluster_thread import cluster_in_a_thread
from tests.client.scripted import ScriptedCluster, eventually, never_answer


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with cluster_in_a_thread({"T": 2}) as cluster:
        yield cluster


def stored(cluster: ScriptedCluster) -> list[bytes]:
    return sorted(message.body for queue in cluster.broker.queues.values() for message in queue)


def test_sending_and_consuming_without_asyncio(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client:
        with client.producer("P") as producer:
            receipt = producer.send("T", b"a", tag="x", order_key="k")
            producer.send_batch("T", [b"b", b"c"], order_key="k")
            producer.send_oneway("T", b"d", order_key="k")
            assert producer.stats.sent == 2
        bodies = []
        with client.consumer("T", group="G", start="earliest") as consumer:
            for message in consumer:
                with message.process() as same:
                    assert same is message
                    bodies.append(message.body)
                    if message.body == b"b" and message.attempt == 1:
                        raise ValueError("again, please")
                if len(bodies) == 5:
                    break
            assert len(consumer.assigned) == 2
        assert sorted(bodies) == [b"a", b"b", b"b", b"c", b"d"]
        with client.pull_consumer("R") as reader:
            assert len(reader.fetch(receipt.queue, offset=0, max=10)) == 4
            reader.subscribe("T")
            assert reader.poll(max=1)


def test_transactions_without_asyncio(cluster: ScriptedCluster) -> None:
    def check(message: sync.ReceivedMessage) -> bool | None:
        raise AssertionError("nobody asks here")

    with sync.connect(cluster.address) as client, client.transaction_producer("P", check=check) as producer:
        with producer.begin("T", b"a") as transaction:
            transaction.commit()
        assert transaction.receipt.message_id
        with producer.begin("T", b"b") as transaction:
            transaction.roll_back()
        with pytest.raises(ZeroDivisionError), producer.begin("T", b"c"):
            raise ZeroDivisionError
        assert producer.stats.sent == 3
    ends = cluster.broker.received(RequestCode.END_TRANSACTION)
    assert [end.read(EndTransaction).commit_or_rollback for end in ends] == [8, 12, 12]


def test_handlers_run_in_threads(cluster: ScriptedCluster) -> None:
    done = threading.Event()
    names = []

    def handler(message: sync.ReceivedMessage) -> None:
        names.append(threading.current_thread().name)
        done.set()

    with sync.connect(cluster.address) as client, client.consumer("T", group="G", start="earliest", handler=handler):
        client.producer("P").send("T", b"x")
        assert done.wait(5)
    assert names[0].startswith("orbitmq-G")


def test_blocking_handlers_get_messages_whose_methods_wait(cluster: ScriptedCluster) -> None:
    given: list[object] = []

    def one(message: sync.ReceivedMessage) -> None:
        if message.attempt == 1:
            message.retry(5)
        given.append(message.body)

    def many(messages: list[Any]) -> None:
        with messages[0].process():
            given.append(type(messages[0]))

    def as_asked(message: ReceivedMessage) -> Any:
        given.append(type(message))

    def value(body: dict[str, int]) -> None:
        given.append(body)

    handlers: list[tuple[Any, list[object]]] = [
        (one, [b'{"a":1}'] * 2),
        (many, [sync.ReceivedMessage]),
        (as_asked, [ReceivedMessage]),
        (value, [{"a": 1}]),
        (functools.partial(value), [{"a": 1}]),
    ]
    cluster.broker.put("T", 0, b'{"a":1}')
    with sync.connect(cluster.address) as client:
        for number, (handler, expected) in enumerate(handlers):
            batch_size = 2 if handler is many else 1
            with client.consumer(
                "T", group=f"G{number}", start="earliest", handler=handler, batch_size=batch_size
            ) as consumer:
                asyncio.run(eventually(functools.partial(operator.attrgetter("acked"), consumer.stats)))
                assert (given, consumer.stats.failed) == (expected, 0)
            given.clear()
    [back] = cluster.broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.read(SendBack).delay_level == 5


@pytest.mark.parametrize("closes_all", [False, True])
def test_handlers_may_close_their_own_consumer(cluster: ScriptedCluster, closes_all: bool) -> None:
    """Several at once, too: each would wait for the others."""
    both = threading.Barrier(2)
    with sync.connect(cluster.address) as client:
        client.producer("P").send_batch("T", [b"a", b"b"], order_key="k")
        consumer: sync.Consumer

        def handler(message: sync.ReceivedMessage) -> None:
            both.wait(10)
            (client if closes_all else consumer).close()

        consumer = client.consumer("T", group="G", handler=handler, start="earliest", close_timeout=3600)
        consumer.__enter__()
        with contextlib.suppress(AlreadyClosed):  # when that comes late
            consumer.wait_closed()
        consumer.close()
    assert cluster.broker.members["G"] == {}


def test_messages_of_the_blocking_client_say_which_they_are(cluster: ScriptedCluster) -> None:
    cluster.broker.put("T", 0, b"x")
    seen: list[str] = []
    with (
        sync.connect(cluster.address) as client,
        client.consumer("T", group="G", start="earliest", handler=lambda message: seen.append(repr(message))),
    ):
        asyncio.run(eventually(lambda: bool(seen)))
    assert seen == ["ReceivedMessage('T', broker-a/0@0, attempt=1, body=1 bytes)"]


def test_many_threads_share_one_producer(cluster: ScriptedCluster) -> None:
    with (
        sync.connect(cluster.address) as client,
        client.producer("P") as producer,
        ThreadPoolExecutor(16) as threads,
    ):
        receipts = list(threads.map(lambda number: producer.send("T", str(number)), range(200)))
    assert len({receipt.message_id for receipt in receipts}) == 200
    assert len(stored(cluster)) == 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_opens_connections_of_its_own(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client, client.producer("P") as producer:
        first = producer.send("T", b"parent")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                receipt = producer.send("T", b"child")
                os.write(writing, receipt.message_id.encode())
                client.close()
            finally:
                os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        assert status == 0
        child_id = os.read(reading, 100).decode()
        os.close(reading)
        assert len(child_id) == len(first.message_id)
        assert child_id[:20] != first.message_id[:20]  # another process, other ids
        producer.send("T", b"parent again")
    assert stored(cluster) == [b"child", b"parent", b"parent again"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_that_only_its_parent_has(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address):
        inherited = portal._current
        assert inherited is not None
        with inherited._entering:  # as another thread may at the moment of a fork
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                inherited.soon(int)  # what acking an inherited message does
                os._exit(0)
        _, status = os.waitpid(child, 0)
    assert status == 0


def test_the_loop_thread_ends_with_the_last_client(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as one, sync.connect(cluster.address) as other:
        one.producer("P").send("T", b"x")
        other.producer("P").send("T", b"y")
        assert [thread.name for thread in threading.enumerate()].count("orbitmq") == 1
    assert "orbitmq" not in [thread.name for thread in threading.enumerate()]


def test_a_client_remembers_only_what_is_open(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client:
        for _ in range(3):
            with client.producer("P") as producer:
                producer.send("T", b"x")
        kept = client.producer("P")
        assert list(client._made) == [kept]
        kept.send("T", b"y")
    with pytest.raises(AlreadyClosed):
        kept.send("T", b"z")


def test_who_waits_while_another_thread_closes_the_client_hears_of_it(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client, ThreadPoolExecutor(1) as threads:
        producer = client.producer("P")
        asking = threads.submit(producer.request, "T", b"nobody answers", timeout=20)
        while not stored(cluster):
            time.sleep(0.01)
        client.close()
        with pytest.raises(AlreadyClosed):
            asking.result(timeout=10)


@pytest.mark.parametrize("closes_all", [False, True])
def test_closing_ends_a_start_that_another_thread_waits_for(cluster: ScriptedCluster, closes_all: bool) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    with sync.connect(cluster.address) as client, ThreadPoolExecutor(1) as threads:
        consumer = client.consumer("T", group="G")
        starting = threads.submit(consumer.__enter__)
        while not cluster.broker.received(RequestCode.GET_MAX_OFFSET):
            time.sleep(0.01)
        (client if closes_all else consumer).close()
        assert cluster.broker.members["G"] == {}
        with pytest.raises(AlreadyClosed, match="closed while it started"):
            starting.result(timeout=10)
        with pytest.raises(AlreadyClosed):
            consumer.pause()
    assert "orbitmq" not in [thread.name for thread in threading.enumerate()]


def test_a_start_that_comes_beside_a_close_leaves_nothing_open(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is closed when the start has looked whether it is, and before it begins."""
    with sync.connect(cluster.address) as client:
        client.producer("P").send("T", b"x")
        consumer = client.consumer("T", group="G")
        enter = portal.enter

        def enter_late() -> portal.Portal:
            consumer.close()
            return enter()

        monkeypatch.setattr(portal, "enter", enter_late)
        with pytest.raises(AlreadyClosed):
            consumer.pause()
        assert cluster.broker.members["G"] == {}
    assert "orbitmq" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no timers that signal")
def test_a_signals_handler_may_close_what_its_thread_starts(cluster: ScriptedCluster) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    with sync.connect(cluster.address) as client:
        consumer = client.consumer("T", group="G")

        def handler(*_: object) -> None:
            while not cluster.broker.received(RequestCode.GET_MAX_OFFSET):
                time.sleep(0.01)
            consumer.close()

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(AlreadyClosed, match="closed while it started"):
                consumer.__enter__()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert cluster.broker.members["G"] == {}


def test_a_producer_that_is_first_used_where_it_cannot_wait_leaves_nothing_behind(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client:
        first, second = client.producer("P"), client.producer("Q")
        entered = portal.enter()
        try:

            async def use() -> None:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with pytest.raises(ConfigError, match="own event loop"):
                        first.send("T", b"a")

            second.send("T", b"b")
            entered.run(use())
            gc.collect()
        finally:
            portal.leave(entered)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no timers that signal")
def test_a_signals_handler_cannot_use_what_its_thread_starts(cluster: ScriptedCluster) -> None:
    """It had begun a second start of the same, which nobody closed."""
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer)
    refused: list[ConfigError] = []
    with sync.connect(cluster.address) as client:
        consumer = client.consumer("T", group="G")

        def handler(*_: object) -> None:
            while not cluster.broker.received(RequestCode.GET_MAX_OFFSET):
                time.sleep(0.01)
            try:
                consumer.assigned  # noqa: B018 - asking is enough
            except ConfigError as error:
                refused.append(error)

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with consumer:
                pass
        finally:
            signal.signal(signal.SIGALRM, before)
    assert "is being started" in refused[0].message
    assert portal._current is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_made_while_another_thread_starts_something_can_start_and_close_it(cluster: ScriptedCluster) -> None:
    cluster.broker.inject(RequestCode.GET_MAX_OFFSET, never_answer, times=2)
    with sync.connect(cluster.address) as client, ThreadPoolExecutor(1) as threads:
        consumer = client.consumer("T", group="G")
        starting = threads.submit(consumer.__enter__)
        while not cluster.broker.received(RequestCode.GET_MAX_OFFSET):
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                consumer.__enter__()
                client.close()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        client.close()
        with pytest.raises(AlreadyClosed):
            starting.result(timeout=10)


def test_what_is_settled_after_all_was_closed_does_no_harm(cluster: ScriptedCluster) -> None:
    with sync.connect(cluster.address) as client:
        client.producer("P").send_batch("T", [b"a", b"b"], order_key="k")
        late, later = itertools.islice(client.consumer("T", group="G", start="earliest"), 2)
    late.ack()
    with pytest.raises(AlreadyClosed):
        later.retry()


def test_errors_are_the_same(cluster: ScriptedCluster) -> None:
    with pytest.raises(ConfigError):
        sync.connect("not an address")
    with sync.connect("127.0.0.1:1") as client, client.producer("P") as producer, pytest.raises(ConnectFailed):
        producer.send("T", b"x", timeout=0.5)
    with pytest.raises(AlreadyClosed):
        producer.send("T", b"x")


def test_a_failed_start_leaves_nothing_behind() -> None:
    with sync.connect("127.0.0.1:1") as client, pytest.raises(ConnectFailed):
        client.consumer("T", group="G").__enter__()
    assert "orbitmq" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("blocking", "original"),
    [
        (sync.Client, AsyncClient),
        (sync.Producer, AsyncProducer),
        (sync.TransactionProducer, AsyncTransactionProducer),
        (sync.Transaction, AsyncTransaction),
        (sync.Consumer, AsyncConsumer),
        (sync.LeaseConsumer, AsyncLeaseConsumer),
        (sync.LeasedMessage, AsyncLeasedMessage),
        (sync.PullConsumer, AsyncPullConsumer),
    ],
)
def test_both_faces_have_the_same_names(blocking: type, original: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    # What only makes sense on the event loop.
    loops_own = {"start", "closed", "add_hook", "cluster", "end_lease", "change_lease"}
    missing = public(original) - public(blocking) - loops_own
    assert missing == set()
    for name in public(original) & public(blocking):
        member = getattr(blocking, name)
        if inspect.ismemberdescriptor(member):
            continue  # plain data
        assert inspect.getdoc(member), f"{blocking.__name__}.{name} has no documentation"


def test_the_package_is_documented() -> None:
    assert async_client_package.__doc__
