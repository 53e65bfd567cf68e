"""What `msg send` does: read messages from wherever they come, send them, say where they are."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click
import msgspec

from orbitmq.admin.sending import Outgoing, ReceiptRow, send_all
from orbitmq.cli.progress import progress
from orbitmq.errors import MessageError
from orbitmq.message import Message
from orbitmq.message.properties import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from orbitmq.cli.options import Target
    from orbitmq.message import QueueRef


class Line(msgspec.Struct, kw_only=True):
    """A message as one line of JSON; what `dlq export` and `-o json` write can be read."""

    body: str = ""
    body_encoding: str = "utf-8"
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    order_key: str | None = None


def read_lines(source: IO[bytes], style: str) -> Iterator[Line]:
    """`lines`: a message a line; `json`: an object a line; `whole`: all of it is one message."""
    if style == "whole":
        data = source.read()
        yield Line(body=base64.b64encode(data).decode(), body_encoding="base64")
        return
    for number, raw in enumerate(source, 1):
        text = raw.rstrip(b"\r\n")
        if not text:
            continue
        if style == "lines":
            yield Line(body=base64.b64encode(text).decode(), body_encoding="base64")
            continue
        try:
            yield msgspec.json.decode(text, type=Line)
        except msgspec.MsgspecError as error:
            raise MessageError(
                f"line {number} is no message: {error}",
                hint='write {"body": "...", "tag": "...", "keys": ["..."], "properties": {"k": "v"}}',
            ) from None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say about every message."""

    topic: str
    tag: str = ""
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    order_key: str | None = None
    delay: timedelta | None = None

    def fill(self, line: Line) -> Outgoing:
        body = base64.b64decode(line.body) if line.body_encoding == "base64" else line.body.encode()
        own = {name: value for name, value in line.properties.items() if name not in RESERVED}
        message = Message(
            self.topic,
            body,
            tag=line.tag or self.tag,
            keys=[*line.keys, *self.keys],
            properties={**own, **self.properties},
        )
        return Outgoing(message, line.order_key or self.order_key, self.delay)


def send_with_progress(target: Target, messages: list[Outgoing], queue: QueueRef | None = None) -> list[ReceiptRow]:
    """Send them all, and show how it goes. After a failure the count of those sent is told."""
    taken = 0
    with progress("sending", len(messages)) as advance:

        def count(more: int) -> None:
            nonlocal taken
            taken += more
            advance(more)

        try:
            return target.run(lambda session: send_all(session, messages, queue=queue, advance=count))
        except Exception:
            if taken:
                click.echo(f"{taken} messages were sent before it failed", err=True)
            raise
