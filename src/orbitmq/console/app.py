"""The console's addresses, and the server that serves them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from orbitmq.console import changing, looking
from orbitmq.console.answers import failure
from orbitmq.console.doors import Doors, Keys, enter, no_page
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.transport.network import listening_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from orbitmq.admin.session import Session

_STATIC: Final = Path(__file__).parent / "static"
_STOP_SECONDS: Final = 5  # a page that is being loaded when we stop may finish


class ConsoleSettings(NamedTuple):
    open_session: Callable[[], Session]  # to the cluster that is shown
    name_servers: str
    token: str
    allow_changes: bool = False
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None


class RunningConsole(NamedTuple):
    url: str

    def address_with(self, token: str) -> str:
        return f"{self.url}/enter?token={token}"


def build_app(settings: ConsoleSettings) -> Starlette:
    keys = Keys(settings.token)
    app = Starlette(
        routes=[
            Route("/", looking.overview),
            Route("/enter", enter, methods=["GET", "POST"]),
            Route("/brokers/{broker}", looking.broker),
            Route("/topics", looking.topics, methods=["GET"]),
            Route("/topics", changing.new_topic, methods=["POST"]),
            Route("/topics/{topic}", looking.topic),
            Route("/topics/{topic}/send", changing.send, methods=["POST"]),
            Route("/topics/{topic}/delete", changing.remove_topic, methods=["POST"]),
            Route("/groups", looking.groups),
            Route("/groups/{group}", looking.group),
            Route("/groups/{group}/reset", changing.reset, methods=["POST"]),
            Route("/messages", looking.messages),
            Route("/messages/{id:path}", looking.message),
            Route("/dead-letters", looking.dead_letters),
            Route("/dead-letters/{group}", looking.dead_letters_of),
            Route("/dead-letters/{group}/resend", changing.resend, methods=["POST"]),
            Route("/doctor", looking.doctor),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Doors, keys=keys)],
        exception_handlers={OrbitError: failure, HTTPException: no_page},
    )
    app.state.keys = keys
    app.state.open_session = settings.open_session
    app.state.name_servers = settings.name_servers
    app.state.allow_changes = settings.allow_changes
    return app


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Left to whoever runs us."""
        yield


@asynccontextmanager
async def running_console(settings: ConsoleSettings) -> AsyncIterator[RunningConsole]:
    """Served on this loop until the block is left."""
    config = uvicorn.Config(
        build_app(settings),
        log_config=None,
        log_level="warning",  # that it starts and ends, the command says itself
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"certificate {settings.certificate} cannot be used with key {settings.key}: {error}",
            hint="both are PEM files, and the key is that of the certificate",
        ) from None
    try:
        listening = listening_socket(settings.host, settings.port)
    except OSError as error:
        raise ConfigError(
            f"the console cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="is another one running? --port 0 takes a free port",
        ) from None
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    host, port = listening.getsockname()[:2]
    shown_host = f"[{host}]" if ":" in host else host
    try:
        yield RunningConsole(f"{'https' if settings.certificate else 'http'}://{shown_host}:{port}")
    finally:
        server.should_exit = True
        await serving
