"""A few pages over HTTP: GET a path, get a text. For scrapers and probes, so one answer per connection is enough.

GET /metrics HTTP/1.1                 HTTP/1.1 200 OK
<headers, ignored>              ->    Content-Type, Content-Length, Connection: close
                                      <text>
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from orbitmq.transport.address import Address
from orbitmq.transport.network import TcpNetwork
from orbitmq.transport.server import ANOTHER_PORT, cannot_listen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orbitmq.transport.network import Listener, Network

logger = logging.getLogger(__name__)

_MAX_REQUEST_BYTES: Final = 16 << 10
_PATIENCE_SECONDS: Final = 10.0  # for a whole request to arrive, and for its answer to leave
_BACKLOG: Final = 64


class Page(NamedTuple):
    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    def __init__(self, pages: Mapping[str, Callable[[], Awaitable[Page]]], network: Network | None = None) -> None:
        self._pages = pages
        self._network = network or TcpNetwork()
        self._listener: Listener | None = None
        self._connections: set[_HttpConnection] = set()

    async def start(self, host: str, port: int, way_out: str = ANOTHER_PORT) -> Address:
        """Port 0 takes a free one. ConfigError, with that way out, when it cannot be had."""
        try:
            self._listener = await self._network.listen(self._accept, host or None, port, _BACKLOG)
        except OSError as error:
            raise cannot_listen(host, port, error, way_out) from None
        return Address(*self._listener.addresses()[0])

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        answering = [connection.answering for connection in self._connections if connection.answering is not None]
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*answering, return_exceptions=True)

    def _accept(self) -> asyncio.Protocol:
        return _HttpConnection(self._pages, self._connections)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, pages: Mapping[str, Callable[[], Awaitable[Page]]], connections: set[_HttpConnection]) -> None:
        self.answering: asyncio.Task[None] | None = None
        self._pages = pages
        self._connections = connections
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._deadline = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.answering is not None:
            return  # one answer per connection
        self._received += data
        head, end, _ = self._received.partition(b"\r\n\r\n")
        if end:
            self.answering = asyncio.create_task(self._answer(head))
        elif len(self._received) > _MAX_REQUEST_BYTES:
            self._send(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._connections.discard(self)
        if self.answering is not None:
            self.answering.cancel()

    def abort(self) -> None:
        self._transport.abort()

    async def _answer(self, head: bytes) -> None:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._pages.get(path)
        if method != "GET":
            self._send(_plain(HTTPStatus.METHOD_NOT_ALLOWED))
        elif page is None:
            self._send(_plain(HTTPStatus.NOT_FOUND))
        else:
            try:
                self._send(await page())
            except Exception as error:  # whatever it is, the asker gets an answer
                logger.error("page %s failed: %r", path, error, exc_info=error)
                self._send(_plain(HTTPStatus.INTERNAL_SERVER_ERROR))

    def _send(self, page: Page) -> None:
        body = page.text.encode()
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()


def _plain(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n", status)
