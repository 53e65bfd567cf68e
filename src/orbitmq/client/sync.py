"""The same client for programs without asyncio: same names, same options, every call waits.

    from orbitmq.sync import connect

    with connect("127.0.0.1:9876") as client, client.producer(group="orders") as producer:
        producer.send("Orders", b"hello")

Usable from many threads, inside Jupyter, and after a fork: a child process opens connections of its own when it first needs
them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from orbitmq.client import portal
from orbitmq.client.client import Client as AsyncClient
from orbitmq.client.client import connect as connect_async
from orbitmq.client.codecs import JSON
from orbitmq.client.consumer import Consumer as AsyncConsumer
from orbitmq.client.handlers import adapted, wanted_by
from orbitmq.client.lease_consumer import LeaseConsumer as AsyncLeaseConsumer
from orbitmq.client.producer import Producer as AsyncProducer
from orbitmq.client.pull_consumer import PullConsumer as AsyncPullConsumer
from orbitmq.client.received import ReceivedMessage as AsyncReceivedMessage
from orbitmq.client.sync_messages import LeasedMessage, ReceivedMessage, Transaction, handing_out
from orbitmq.client.transactions import TransactionProducer as AsyncTransactionProducer
from orbitmq.client.workers import is_async
from orbitmq.errors import AlreadyClosed, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from types import TracebackType

    from orbitmq.client.receipts import Receipt
    from orbitmq.client.stats import ConsumerStats, ProducerStats
    from orbitmq.client.transactions import Transaction as AsyncTransaction
    from orbitmq.message import QueueRef

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    async def close(self) -> None: ...


class _Startable(_Closable, Protocol):
    async def start(self) -> object: ...


P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=_Closable)
S = TypeVar("S", bound=_Startable)
F = TypeVar("F", bound="_Face[Any]")


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Face[A], P], R]:
    """The same method, waiting for its result."""

    @functools.wraps(method)
    def call(self: _Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        here = self._here()
        return here.portal.run(method(here.target, *args, **kwargs))

    return call


def _at_once(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[_Face[A], P], R]:
    """The same method, which waits for nothing."""

    @functools.wraps(method)
    def call(self: _Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._here().target, *args, **kwargs)

    return call


def _on_loop(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[_Face[A], P], R]:
    """The same method, which waits for nothing but may run only where the consumer lives."""

    @functools.wraps(method)
    def call(self: _Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        here = self._here()
        return here.portal.run(_called(lambda: method(here.target, *args, **kwargs)))

    return call


def _beginning(
    method: Callable[Concatenate[AsyncTransactionProducer, P], AsyncTransaction],
) -> Callable[Concatenate[TransactionProducer, P], Transaction]:
    """The same method, for a block without `async`."""

    @functools.wraps(method)
    def begin(self: TransactionProducer, /, *args: P.args, **kwargs: P.kwargs) -> Transaction:
        here = self._here()
        return Transaction(method(here.target, *args, **kwargs), here.portal)

    return begin


class _Here(Generic[A]):
    """The async object behind a face, in this process."""

    __slots__ = ("pid", "portal", "target")

    def __init__(self, pid: int, entered: portal.Portal, target: A) -> None:
        self.pid = pid
        self.portal = entered
        self.target = target


class _Opening:
    """An async object on its way to be made and started, which others may give up meanwhile."""

    __slots__ = ("_given_up", "_task", "portal")

    def __init__(self, entered: portal.Portal) -> None:
        self.portal = entered
        self._given_up = False
        self._task: asyncio.Task[Any] | None = None

    async def run(self, making: Coroutine[Any, Any, R]) -> R:
        """AlreadyClosed when it was given up."""
        self._task = asyncio.current_task()
        try:
            if not self._given_up:
                return await making
            making.close()
        except asyncio.CancelledError:
            if not self._given_up:
                raise
        raise AlreadyClosed("it was closed while it started", hint="make a new one")

    async def give_up(self) -> None:
        """Return when nothing of it goes on."""
        self._given_up = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


class _Face(Generic[A]):
    """Opens its async object when first used, and again in a child process."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, A]]) -> None:
        """`make` is called in the thread that asks, the coroutine it returns runs on the loop."""
        self._make = make
        self._lock = threading.RLock()  # a signal's handler may close what its own thread opens
        self._lock_pid = os.getpid()
        self._opening: _Opening | None = None
        self._opened: _Here[A] | None = None
        self._closed = False
        self._left: Callable[[], object] | None = None  # tells who made it that it needs no closing any more
        self._works_in_threads = False

    def _here(self) -> _Here[A]:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        self._check_open()
        self._notice_fork()
        with self._lock:
            opened = self._opened
            if opened is None or opened.pid != os.getpid():
                if self._opening is not None:  # by this very thread, which a signal has interrupted
                    raise ConfigError(
                        f"this {type(self).__name__.lower()} is being started", hint="a signal's handler may close it"
                    )
                opened = self._opened = self._open()
            return opened

    def _open(self) -> _Here[A]:
        entered = portal.enter()
        try:
            opening = self._opening = _Opening(entered)
            self._check_open()  # who closes from now on gives this up
            entered.check_thread()  # before something is made that nothing would ever run
            return _Here(os.getpid(), entered, entered.run(opening.run(self._make())))
        except BaseException:
            portal.leave(entered)
            raise
        finally:
            self._opening = None

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"this {type(self).__name__.lower()} is closed", hint="make a new one")

    def _notice_fork(self) -> None:
        """A thread that does not exist in this process may hold the lock, and be about to open."""
        if self._lock_pid != os.getpid():
            self._lock, self._opening = threading.RLock(), None
            self._lock_pid = os.getpid()

    def close(self) -> None:
        """End it; see the method of the same name in the asyncio client."""
        self._closed = True
        if self._left is not None:
            self._left()
        self._notice_fork()
        opening = self._opening
        if opening is not None:
            with contextlib.suppress(AlreadyClosed):  # it has ended meanwhile, and its loop with it
                opening.portal.run(opening.give_up())
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is None or opened.pid != os.getpid():
            return
        try:
            opened.portal.run(opened.target.close())
        finally:
            portal.leave(opened.portal)

    def __enter__(self) -> Self:
        self._here()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Face[AsyncProducer]):
    """Sends messages as one producer group. Made by `Client.producer`; safe to use from many threads at once."""

    send = _blocking(AsyncProducer.send)
    send_message = _blocking(AsyncProducer.send_message)
    send_batch = _blocking(AsyncProducer.send_batch)
    send_oneway = _blocking(AsyncProducer.send_oneway)
    send_encoded = _blocking(AsyncProducer.send_encoded)
    new_ids = _blocking(AsyncProducer.new_ids)
    recall = _blocking(AsyncProducer.recall)
    request = _blocking(AsyncProducer.request)
    queues = _blocking(AsyncProducer.queues)
    message = _at_once(AsyncProducer.message)

    def reply(
        self, to: ReceivedMessage | AsyncReceivedMessage, body: object, *, timeout: float | None = None
    ) -> Receipt:
        """Answer a request that a consumer got; RequestFailed when who asked is not there any more."""
        inner = to.inner if isinstance(to, ReceivedMessage) else to
        here = self._here()
        return here.portal.run(here.target.reply(inner, body, timeout=timeout))

    @property
    def stats(self) -> ProducerStats:
        """What it did so far, in this process."""
        return self._here().target.stats


class TransactionProducer(_Face[AsyncTransactionProducer]):
    """Sends messages in transactions. Made by `Client.transaction_producer`; safe to use from many threads at once."""

    begin = _beginning(AsyncTransactionProducer.begin)

    @property
    def stats(self) -> ProducerStats:
        """What it did so far, in this process; halves count as sent."""
        return self._here().target.stats


class Consumer(_Face[AsyncConsumer]):
    """A member of a consumer group. Made by `Client.consumer`.

    With a handler it works in the background, each call in a thread, until it is closed. Without, iterate over it.
    """

    subscribe = _blocking(AsyncConsumer.subscribe)
    unsubscribe = _blocking(AsyncConsumer.unsubscribe)
    seek = _blocking(AsyncConsumer.seek)
    wait_closed = _blocking(AsyncConsumer.wait_closed)
    pause = _on_loop(AsyncConsumer.pause)
    resume = _on_loop(AsyncConsumer.resume)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        here = self._here()
        here.target.__aiter__()
        while True:
            try:
                inner = here.portal.run(here.target.__anext__())
            except StopAsyncIteration:
                return
            yield ReceivedMessage(inner, here.portal)

    @property
    def assigned(self) -> list[QueueRef]:
        """The queues that are ours now, without those of the group's retry topic."""
        here = self._here()
        return here.portal.run(_called(lambda: here.target.assigned))

    @property
    def stats(self) -> ConsumerStats:
        """What it did so far, in this process."""
        return self._here().target.stats


class LeaseConsumer(_Face[AsyncLeaseConsumer]):
    """Leases messages of one topic. Made by `Client.lease_consumer`; safe to use from many threads at once."""

    def fetch(self, *, max: int = 32, wait: float = 15.0) -> list[LeasedMessage]:  # noqa: A002 - the public face's word
        """Up to `max` messages, leased from now; with none there, wait up to `wait` seconds for the first."""
        here = self._here()
        found = here.portal.run(here.target.fetch(max=max, wait=wait))
        return [LeasedMessage(one, here.portal) for one in found]

    def ack(self, messages: Iterable[LeasedMessage]) -> None:
        """Ack many in one request a broker."""
        here = self._here()
        here.portal.run(here.target.ack([message.inner for message in messages]))

    def __iter__(self) -> Iterator[LeasedMessage]:
        here = self._here()
        while True:
            try:
                inner = here.portal.run(here.target.__anext__())
            except StopAsyncIteration:
                return
            yield LeasedMessage(inner, here.portal)

    @property
    def stats(self) -> ConsumerStats:
        """What it did so far, in this process."""
        return self._here().target.stats


class PullConsumer(_Face[AsyncPullConsumer]):
    """Reads queues at one's own pace. Made by `Client.pull_consumer`."""

    queues = _blocking(AsyncPullConsumer.queues)
    fetch = _blocking(AsyncPullConsumer.fetch)
    min_offset = _blocking(AsyncPullConsumer.min_offset)
    max_offset = _blocking(AsyncPullConsumer.max_offset)
    offset_at = _blocking(AsyncPullConsumer.offset_at)
    committed = _blocking(AsyncPullConsumer.committed)
    commit_offset = _blocking(AsyncPullConsumer.commit_offset)
    subscribe = _blocking(AsyncPullConsumer.subscribe)
    assign = _blocking(AsyncPullConsumer.assign)
    poll = _blocking(AsyncPullConsumer.poll)
    pause = _on_loop(AsyncPullConsumer.pause)
    resume = _on_loop(AsyncPullConsumer.resume)
    commit = _blocking(AsyncPullConsumer.commit)
    seek = _blocking(AsyncPullConsumer.seek)

    @property
    def assigned(self) -> list[QueueRef]:
        """The queues that are ours now."""
        here = self._here()
        return here.portal.run(_called(lambda: here.target.assigned))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            opened.portal.run(opened.target.__aexit__(kind, error, trace))
        self.close()


def _making(
    method: Callable[Concatenate[AsyncClient, P], S], face: Callable[[Callable[[], Coroutine[Any, Any, S]]], F]
) -> Callable[Concatenate[Client, P], F]:
    """A method of the client that makes something: the same options, the blocking face of the result."""

    @functools.wraps(method)
    def make(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> F:
        handler = kwargs.get("handler")
        works_in_threads = callable(handler) and not is_async(handler)
        if callable(handler) and works_in_threads:
            kwargs["handler"] = self._waiting(handler, kwargs)

        async def opened(client: AsyncClient) -> S:
            made = method(client, *args, **kwargs)
            await made.start()
            return made

        made = face(lambda: opened(self._here().target))
        made._works_in_threads = works_in_threads
        self._keep(made)
        return made

    return make


class Client(_Face[AsyncClient]):
    """Makes producers and consumers, and closes those that are still open when it is closed itself."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        async def opened() -> AsyncClient:
            return make()

        super().__init__(opened)
        self._made: dict[_Face[Any], None] = {}  # in the order they were made; who is closed leaves
        _open_clients.add(self)

    producer = _making(AsyncClient.producer, Producer)
    transaction_producer = _making(AsyncClient.transaction_producer, TransactionProducer)
    consumer = _making(AsyncClient.consumer, Consumer)
    lease_consumer = _making(AsyncClient.lease_consumer, LeaseConsumer)
    pull_consumer = _making(AsyncClient.pull_consumer, PullConsumer)

    def close(self) -> None:
        """Close what was made here and is still open, last made first. Safe to call twice."""
        for made in reversed(list(self._made)):
            made.close()
        super().close()
        _open_clients.discard(self)

    def _close_what_works_in_threads(self) -> None:
        """Consumers of this process whose handlers run in threads, as far as they can be closed."""
        for made in reversed(list(self._made)):
            opened = made._opened
            if made._works_in_threads and opened is not None and opened.pid == os.getpid():
                try:
                    made.close()
                except Exception as error:  # whatever it is, the program ends, and others wait for that
                    logger.warning("a consumer was not closed at the program's end: %s", error)

    def _waiting(self, handler: Callable[[Any], Any], options: Mapping[str, Any]) -> Callable[[Any], Any]:
        """A blocking handler, given messages of this face, unless it asks for the other one's by its annotation."""
        batches = options.get("batch_size", 1) > 1
        if wanted_by(handler, batches=batches) is AsyncReceivedMessage:
            return handler
        adapted_handler = adapted(handler, options.get("codec", JSON), batches=batches)
        return handing_out(adapted_handler, lambda: self._here().portal)

    def _keep(self, made: _Face[Any]) -> None:
        made._left = lambda: self._made.pop(made, None)
        self._made[made] = None


def _connecting(method: Callable[P, AsyncClient]) -> Callable[P, Client]:
    @functools.wraps(method)
    def connect(*args: P.args, **kwargs: P.kwargs) -> Client:
        method(*args, **kwargs)  # what is wrong with the arguments shows here and now
        return Client(lambda: method(*args, **kwargs))

    return connect


connect = _connecting(connect_async)


_open_clients: set[Client] = set()


@atexit.register
def _close_open_clients() -> None:
    """A program that never closed its clients still ends quietly, its offsets committed."""
    for client in list(_open_clients):
        client.close()


def _close_what_works_in_threads() -> None:
    """When the main thread ends, Python ends all pools of threads: a handler that ran in one could only fail from then on, and
    its messages would go to the retry topic. What runs without such threads goes on for the program's other threads.
    """
    for client in list(_open_clients):
        client._close_what_works_in_threads()


# Python offers concurrent.futures this hook and no other: last registered, first called, and `atexit` comes after all of them.
getattr(threading, "_register_atexit", atexit.register)(_close_what_works_in_threads)


async def _called(function: Callable[[], R]) -> R:
    return function()
