"""What `msg send` does: read messages from wherever they come, send them, say where they are."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import click
import msgspec

from orbitmq.admin.sending import Outgoing, ReceiptRow, send_all, send_arriving
from orbitmq.cli.progress import progress
from orbitmq.errors import MessageError
from orbitmq.message import Message
from orbitmq.message.properties import RESERVED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from typing import IO

    from orbitmq.cli.options import Target
    from orbitmq.message import QueueRef

T = TypeVar("T")

_CHUNK_BYTES: Final = 1 << 16
_FORM: Final = 'write {"body": "...", "tag": "...", "keys": ["..."], "properties": {"k": "v"}}'


class Line(msgspec.Struct, kw_only=True):
    """A message as JSON: a line of `dlq export`, or one of the list that `msg find -o json` prints."""

    body: str = ""
    body_encoding: Literal["utf-8", "base64"] = "utf-8"
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    order_key: str | None = None

    def __post_init__(self) -> None:
        self.data()  # what cannot be sent is found before it is tried

    def data(self) -> bytes:
        return base64.b64decode(self.body, validate=True) if self.body_encoding == "base64" else self.body.encode()


def text_line(text: str) -> Line:
    """What was typed, byte for byte: a terminal need not speak UTF-8."""
    return _line(os.fsencode(text))


def _line(data: bytes) -> Line:
    return Line(body=base64.b64encode(data).decode(), body_encoding="base64")


def _decoded(text: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MessageError(f"{what}: {error}", hint=_FORM) from None


def parsed(raw_lines: Iterable[bytes], style: str, first: int = 1) -> Iterator[Line]:
    """`lines`: a message a line; `json`: an object a line. `first` is the number of the first line."""
    for number, raw in enumerate(raw_lines, first):
        text = raw.rstrip(b"\r\n")
        if not text:
            continue
        if style == "lines":
            yield _line(text)
            continue
        yield _decoded(text, Line, f"line {number} is no message")


def _is_list(data: bytes, style: str) -> bool:
    return style == "json" and data.lstrip().startswith(b"[")


def parsed_list(data: bytes) -> list[Line]:
    return _decoded(data, list[Line], "this is no list of messages")


async def arriving(pipe: IO[bytes], style: str) -> AsyncIterator[list[Line]]:
    """The messages of a pipe as they come, those that come together in one list."""
    reader = asyncio.StreamReader()
    opened, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        number, rest = 1, b""
        while chunk := await reader.read(_CHUNK_BYTES):
            if number == 1 and _is_list(rest + chunk, style):
                yield parsed_list(rest + chunk + await reader.read())
                return
            *raw, rest = (rest + chunk).split(b"\n")
            yield list(parsed(raw, style, number))
            number += len(raw)
        yield list(parsed([rest], style, number))
    finally:
        opened.close()


def _is_pipe(source: IO[bytes]) -> bool:
    try:
        mode = os.fstat(source.fileno()).st_mode
    except OSError:  # no file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say about every message."""

    topic: str
    tag: str = ""
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    order_key: str | None = None
    delay: timedelta | None = None

    def fill(self, line: Line) -> Outgoing:
        own = {name: value for name, value in line.properties.items() if name not in RESERVED}
        message = Message(
            self.topic,
            line.data(),
            tag=line.tag or self.tag,
            keys=[*line.keys, *self.keys],
            properties={**own, **self.properties},
        )
        return Outgoing(message, line.order_key or self.order_key, self.delay)


def send_from(
    target: Target, source: IO[bytes], style: str, envelope: Envelope, queue: QueueRef | None
) -> list[ReceiptRow]:
    """The messages of a file are read first, so that a wrong line stops all of them; those of a pipe are sent as they come.

    `style` as for `parsed`, or `whole`: all of it is one message.
    """
    if style == "whole":
        return send_with_progress(target, [envelope.fill(_line(source.read()))], queue)
    if not _is_pipe(source):
        data = source.read()
        lines = parsed_list(data) if _is_list(data, style) else parsed(data.split(b"\n"), style)
        return send_with_progress(target, [envelope.fill(line) for line in lines], queue)

    async def batches() -> AsyncIterator[list[Outgoing]]:
        async for lines in arriving(source, style):
            yield [envelope.fill(line) for line in lines]

    return _shown(
        None, lambda count: target.run(lambda session: send_arriving(session, batches(), queue=queue, advance=count))
    )


def send_with_progress(target: Target, messages: list[Outgoing], queue: QueueRef | None = None) -> list[ReceiptRow]:
    return _shown(
        len(messages),
        lambda count: target.run(lambda session: send_all(session, messages, queue=queue, advance=count)),
    )


def _shown(total: int | None, send: Callable[[Callable[[int], None]], list[ReceiptRow]]) -> list[ReceiptRow]:
    """Send, and show how it goes. If it does not come to its end, the count of those sent is told."""
    taken = 0
    with progress("sending", total) as advance:

        def count(more: int) -> None:
            nonlocal taken
            taken += more
            advance(more)

        try:
            return send(count)
        except BaseException:
            if taken:
                click.echo(f"{taken} messages were sent before it ended", err=True)
            raise
