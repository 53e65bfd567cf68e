"""A name server and a broker in this process, on a thread and an event loop of their own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from orbitmq.broker import settings as broker_settings
from orbitmq.broker.broker import Broker
from orbitmq.errors import OrbitError
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver.server import NameServer
from orbitmq.testing.clock import MovableClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_START_SECONDS: Final = 30.0
_SEGMENT_BYTES: Final = 16 << 20
_TIMER_LOG_BYTES: Final = 1 << 20


class Server:
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
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._broker: Broker | None = None
        self._resumed = threading.Event()

    def start(self) -> Self:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="orbitmq-test-"))
        self._thread = threading.Thread(target=self._run, name="orbitmq-test-server", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise OrbitError(f"the test server did not start within {_START_SECONDS:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        self.resume()
        if self._thread is not None and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_START_SECONDS)
            self._thread = None
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

        self._call(freeze)
        frozen.wait(_START_SECONDS)

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
        broker, done = self._broker, threading.Event()

        def apply() -> None:
            change(broker)
            done.set()

        self._call(apply)
        done.wait(_START_SECONDS)

    def _call(self, function: Callable[[], None]) -> None:
        assert self._loop is not None, "the server is not running"
        self._loop.call_soon_threadsafe(function)

    # ---- the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        assert self._folder is not None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        name_server_configuration = nameserver_settings.load(
            None,
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(self._folder / "nameserver" / "kvConfig.json"),
            config_store_path=str(self._folder / "nameserver" / "namesrv.properties"),
        )
        async with NameServer(name_server_configuration, clock=self.clock) as name_server:
            broker_configuration = broker_settings.load(
                None,
                {
                    "bindAddress": "127.0.0.1",
                    "listenPort": "0",
                    "brokerName": "test",
                    "storePathRootDir": str(self._folder / "store"),
                    "mappedFileSizeCommitLog": str(_SEGMENT_BYTES),
                    "mappedFileSizeTimerLog": str(_TIMER_LOG_BYTES),
                    **self._settings,
                    "namesrvAddr": str(name_server.address),
                },
            )
            async with Broker(broker_configuration, clock=self.clock) as broker:
                self._broker = broker
                self.address = str(name_server.address)
                self.broker_address = str(broker.address)
                self._ready.set()
                await self._stop.wait()
                self._broker = None
