"""Express handlers: the usual request, answered from its bytes.

Most requests to a busy server are alike. An express handler gets such a request's header and body as they came in, and gives
back the answer's whole frame: no command, no coroutine, no task. Whatever is unusual about a request it leaves to the
ordinary handler of the code, by answering None before it has changed anything. So it adds speed, and no behaviour.

    frame ─> first bytes of its header known? ─yes─> express handler ─┬─> bytes: the answer's frame
                  │                                                   ├─> b"": the answer comes later, or there is none
                  └─no─> the ordinary way <───────────────────────────┴─> None

A swift handler goes further: it gets all that was read, takes as many usual requests as stand at its front, and gives back how
many bytes that were, and their answers. Only compiled code gains by it (accelerated.py).

A swift reader, compiled as well, does the event loop's part of it: it reads the sockets of connections that a swift handler has served,
many at a time, and gives what is unusual to their `data_received`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from orbitmq.protocol.frame import CODEC_BINARY

if TYPE_CHECKING:
    import asyncio

    from orbitmq.transport.connection import Connection

ExpressHandler = Callable[["Connection", bytes, bytes], bytes | None]
SwiftHandler = Callable[["Connection", bytes], tuple[int, bytes]]
ExpressRoutes = Mapping[tuple[int, int], ExpressHandler]  # by request code and header codec


class Refuser(Protocol):
    """A swift handler that refuses requests instead of serving them; of a swift reader it is asked in parts."""

    @property
    def sends(self) -> Any:
        """Frames in, answers out: the accelerator's own, where that reads sockets."""
        ...

    def __call__(self, connection: Connection, data: bytes) -> tuple[int, bytes]: ...

    def takes_read(self) -> bool:
        """Whether the requests of one more read are to be served."""
        ...

    def count(self, refused: int) -> None: ...


class SwiftReader(Protocol):
    """Of one server. What it needs of a connection: `Connection`, "what a swift reader calls"."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def stop(self) -> None: ...

    def take(self, connection: Connection, transport: asyncio.Transport, descriptor: int) -> bool:
        """Read this socket from now on, in place of the event loop. False: it cannot."""
        ...

    def give_back(self, connection: Connection, descriptor: int) -> None:
        """Read it no longer, if it is still this connection's."""
        ...


# Every known peer writes a JSON header's code first, and these many bytes hold codes of two and three digits whole.
JSON_START_BYTES: Final = 11
BINARY_START_BYTES: Final = 2
MOST_SWIFT_HEADER_BYTES: Final = 1 << 17  # swift handlers look at no longer header, and at no limit of the connection's


def by_first_bytes(routes: ExpressRoutes) -> dict[bytes, ExpressHandler]:
    """A handler must look at the code itself: `{"code":310` may go on."""
    return {
        code.to_bytes(BINARY_START_BYTES, "big")
        if codec == CODEC_BINARY
        else (b'{"code":%d,' % code)[:JSON_START_BYTES]: handler
        for (code, codec), handler in routes.items()
    }
