"""A program whose work is its handlers: declare them, then run.

    app = App("127.0.0.1:9876")

    @app.subscriber("Orders", group="billing", concurrency=8)
    async def on_order(order: Order) -> None:
        await app.publish("Invoices", make_invoice(order))

    @app.responder("Prices", group="pricing")
    async def price_of(article: Article) -> Price: ...

`orbitmq run module:app` runs it, with worker processes and reload; `app.run()` does so from code, `async with app` in tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar

from orbitmq.client.client import Client, connect
from orbitmq.client.codecs import JSON
from orbitmq.client.handlers import adapted
from orbitmq.client.responding import responding
from orbitmq.errors import AlreadyClosed, ConfigError
from orbitmq.transport.loop import run

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path
    from types import TracebackType
    from typing import Unpack

    from orbitmq.client.assignment import Strategy
    from orbitmq.client.codecs import Codec
    from orbitmq.client.consumer import Consumer
    from orbitmq.client.consumer_options import Start
    from orbitmq.client.filters import Sql
    from orbitmq.client.hooks import ConsumeHook
    from orbitmq.client.producer import Keys, Producer
    from orbitmq.client.receipts import Receipt
    from orbitmq.message import Message
    from orbitmq.protocol.signing import Credentials

logger = logging.getLogger(__name__)

H = TypeVar("H", bound="Callable[..., Any]")

_STOPPING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class SubscriberOptions(TypedDict, total=False):
    """What `subscriber` takes beside topics and group: the options of `Client.consumer`."""

    filter: str | Sql | None
    codec: Codec
    start: Start
    broadcasting: bool
    orderly: bool
    strategy: str | Strategy
    concurrency: int
    batch_size: int
    pull_batch_size: int
    max_cached_messages: int
    max_cached_bytes: int
    max_span: int
    max_retries: int | None
    consume_timeout: float
    suspend: float
    commit_every: float
    close_timeout: float
    offset_directory: Path | str | None
    hooks: Sequence[ConsumeHook]


class App:
    """Handlers and what they need, started and stopped together."""

    def __init__(
        self,
        name_servers: str | Iterable[str] | None = None,
        *,
        producer_group: str = "orbitmq-app",
        credentials: Credentials | tuple[str, str] | tuple[str, str, str] | None = None,
        tls: ssl.SSLContext | bool | None = None,
        namespace: str = "",
    ) -> None:
        """As `connect`; nothing is contacted before the app runs, not even the environment is read."""
        self._connect: Callable[[], Client] = lambda: connect(
            name_servers, credentials=credentials, tls=tls, namespace=namespace
        )
        self._producer_group = producer_group
        self._subscribers: list[Callable[[Client], Consumer]] = []
        self._at_start: list[Callable[[], Awaitable[None]]] = []
        self._at_stop: list[Callable[[], Awaitable[None]]] = []
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._starting: asyncio.Task[Any] | None = None

    # ---- declaring

    def subscriber(
        self,
        topics: str | Sequence[str] | Mapping[str, str | Sql | None],
        *,
        group: str,
        **options: Unpack[SubscriberOptions],
    ) -> Callable[[H], H]:
        """The decorated function handles these topics. It stays what it was: call it in tests as any other function."""

        def declare(handler: H) -> H:
            self._subscribers.append(lambda client: client.consumer(topics, group=group, handler=handler, **options))
            return handler

        return declare

    def responder(
        self,
        topics: str | Sequence[str] | Mapping[str, str | Sql | None],
        *,
        group: str,
        **options: Unpack[SubscriberOptions],
    ) -> Callable[[H], H]:
        """The decorated function answers requests to these topics: what it returns is the reply, encoded by the `codec`.

        It takes one request at a time, so `batch_size` has no place here. What it raises delivers the request again.
        """
        if options.get("batch_size", 1) != 1:
            raise ConfigError("a responder takes one request at a time", hint="leave batch_size out")
        codec = options.get("codec", JSON)

        def declare(handler: H) -> H:
            answering = responding(adapted(handler, codec), codec, self._running_producer)
            self._subscribers.append(lambda client: client.consumer(topics, group=group, handler=answering, **options))
            return handler

        return declare

    def on_start(self, function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Run before the first message: open a database, say."""
        self._at_start.append(function)
        return function

    def on_stop(self, function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Run after the last message, in reverse order of declaration."""
        self._at_stop.append(function)
        return function

    # ---- using

    async def publish(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        message_group: str | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send a message; see `Producer.send`."""
        return await self._running_producer().send(
            topic, body, tag=tag, keys=keys, properties=properties, order_key=order_key, message_group=message_group,
            delay=delay, deliver_at=deliver_at, timeout=timeout,
        )  # fmt: skip

    async def request(
        self,
        topic: str,
        body: object,
        *,
        tag: str = "",
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Send a request and wait for its reply; see `Producer.request`."""
        return await self._running_producer().request(
            topic, body, tag=tag, keys=keys, properties=properties, order_key=order_key, timeout=timeout
        )

    def _running_producer(self) -> Producer:
        if self._producer is None:
            raise AlreadyClosed("the app is not running", hint="publish from handlers, or inside `async with app`")
        return self._producer

    # ---- running

    async def start(self) -> None:
        """Connect, run what `on_start` declared, join the groups."""
        self._check_idle()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    def _check_idle(self) -> None:
        if self._client is not None:
            raise ConfigError("the app is running already", hint="run it once")

    async def _start(self) -> None:
        client = self._client = self._connect()
        self._producer = await client.producer(self._producer_group).start()
        for function in self._at_start:
            await function()
        for make in self._subscribers:
            await make(client).start()

    async def stop(self) -> None:
        """Let running handlers end, commit what is done, close everything."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            await client.close()  # the producer, made first, closes last: handlers that still run may publish
        finally:
            if self._client is None:  # else it was started again meanwhile
                self._producer = None
            await self._run_at_stop()

    async def _run_at_stop(self) -> None:
        """All of it: one that fails must not keep the others from closing what is theirs."""
        failures: list[Exception] = []
        for function in reversed(self._at_stop):
            try:
                await function()
            except Exception as error:
                failures.append(error)
        for failure in failures[1:]:
            logger.error("what on_stop declared failed, too: %r", failure, exc_info=failure)
        if failures:
            raise failures[0]

    async def serve(self) -> None:
        """Run until a signal (SIGINT, SIGTERM; in the main thread, which alone has them) or `shut_down` ends it.

        While it starts, too: what `on_start` declared is cancelled then, and what `on_stop` declared runs.
        """
        self._check_idle()
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        signals = _STOPPING_SIGNALS if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, self._end_serving)
        try:
            if await self._started_untold(self._stopping):
                logger.info("app runs with %d subscribers", len(self._subscribers))
                await self._stopping.wait()
            logger.info("app stops")
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

    async def _started_untold(self, stopping: asyncio.Event) -> bool:
        """False when it was told to end before it had started. All in one task: what starts and stops may depend on that."""
        task = self._starting = asyncio.current_task()
        assert task is not None
        try:
            await self._start()
        except asyncio.CancelledError:
            if not stopping.is_set() or task.uncancel():
                raise  # somebody else has cancelled it
            return False
        finally:
            self._starting = None
        if stopping.is_set():
            task.uncancel()  # whatever was cancelled went on to its end
        return True

    def _end_serving(self) -> None:
        if self._stopping is None or self._stopping.is_set():
            return
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()

    def shut_down(self) -> None:
        """End `serve`, from a handler or anywhere else, in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and `serve` with it
                self._loop.call_soon_threadsafe(self._end_serving)

    def run(self) -> None:
        """Run in this thread until the process is told to end; in any but the main one, until `shut_down`."""
        run(self.serve())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
