"""Express handlers: the usual request, answered from its bytes.

Most requests to a busy server are alike. An express handler gets such a request's header and body as they came in, and gives
back the answer's whole frame: no command, no coroutine, no task. Whatever is unusual about a request it leaves to the
ordinary handler of the code, by answering None before it has changed anything. So it adds speed, and no behaviour.

    frame ─> first bytes of its header known? ─yes─> express handler ─┬─> bytes: the answer's frame
                  │                                                   ├─> b"": the answer comes later, or there is none
                  └─no─> the ordinary way <───────────────────────────┴─> None
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from orbitmq.protocol.frame import CODEC_BINARY

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

ExpressHandler = Callable[["Connection", bytes, bytes], bytes | None]
ExpressRoutes = Mapping[tuple[int, int], ExpressHandler]  # by request code and header codec

# Every known peer writes a JSON header's code first, and these many bytes hold codes of two and three digits whole.
JSON_START_BYTES: Final = 11
BINARY_START_BYTES: Final = 2


def by_first_bytes(routes: ExpressRoutes) -> dict[bytes, ExpressHandler]:
    """A handler must look at the code itself: `{"code":310` may go on."""
    return {
        code.to_bytes(BINARY_START_BYTES, "big")
        if codec == CODEC_BINARY
        else (b'{"code":%d,' % code)[:JSON_START_BYTES]: handler
        for (code, codec), handler in routes.items()
    }
