"""A name server and a broker in this process, on a thread and an event loop of their own."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orbitmq.broker.broker import Broker
from orbitmq.nameserver.server import NameServer
from orbitmq.testing.clock import MovableClock
from orbitmq.testing.contents import Contents
from orbitmq.testing.loop_thread import PATIENCE_SECONDS, LoopThread
from orbitmq.testing.small_settings import broker_configuration, name_server_configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping


class Server(Contents):
    """Started by `start` or `with`; what it kept is gone when it stops, unless `data` is a folder of yours.

    `settings` are broker settings under Apache's names, such as {"autoCreateTopicEnable": "false"}.
    """

    def __init__(self, *, data: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.clock = MovableClock()
        self.address = ""  # of the name server: what clients connect to
        self.broker_address = ""
        self._keep = data is not None
        self._folder = data
        self._settings = dict(settings or {})
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._resumed = threading.Event()

    def start(self) -> Self:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="orbitmq-test-"))
        self._thread = LoopThread("orbitmq-test-server")
        self._thread.start(self._running(self._folder))
        return self

    def stop(self) -> None:
        self.resume()
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.stop()
        finally:
            if not self._keep and self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- faults

    def pause(self) -> None:
        """Freeze: connections stay open, nothing is answered, until `resume`."""
        frozen = threading.Event()
        self._resumed.clear()

        def freeze() -> None:
            frozen.set()
            self._resumed.wait()

        assert self._thread is not None, "the server is not running"
        self._thread.call(freeze)
        frozen.wait(PATIENCE_SECONDS)

    def resume(self) -> None:
        self._resumed.set()

    def refuse_sends(self, reason: str = "refused by the test") -> None:
        """Answer every send with SYSTEM_BUSY, until `accept_sends`."""
        self._on_broker(lambda broker: setattr(broker.state.sending, "refusal", reason))

    def accept_sends(self) -> None:
        self._on_broker(lambda broker: setattr(broker.state.sending, "refusal", ""))

    def drop_connections(self) -> None:
        """Cut every connection to the broker, as a failing network does. Clients may come back at once."""
        self._on_broker(Broker.drop_connections)

    def _on_broker(self, change: Callable[[Broker], None]) -> None:
        assert self._broker is not None, "the server is not running"
        assert self._thread is not None, "the server is not running"
        broker = self._broker
        self._thread.called(lambda: change(broker))

    # ---- on the thread

    @asynccontextmanager
    async def _running(self, folder: Path) -> AsyncIterator[None]:
        async with NameServer(name_server_configuration(folder / "nameserver")) as name_server:
            own = {**self._settings, "namesrvAddr": str(name_server.address)}
            async with Broker(broker_configuration(folder / "store", own), clock=self.clock) as broker:
                self._broker = broker
                self.address = str(name_server.address)
                self.broker_address = str(broker.address)
                yield
                self._broker = None
