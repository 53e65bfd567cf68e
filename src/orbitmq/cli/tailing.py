"""What `topic tail` does: follow a topic, choose, print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import click

from orbitmq.admin.following import Start, follow
from orbitmq.admin.messages import MessageRow
from orbitmq.cli.choosing import fields_of
from orbitmq.cli.times import parse_moment
from orbitmq.cli.view import View, line_text, local_time, printable
from orbitmq.client.filters import Sql
from orbitmq.clock import SystemClock

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

_PLAIN: Final = "{stored_at}  {place}  {tag}  {keys}  {body}"
_MOMENTS: Final = ("born_at", "stored_at")


def starting_point(text: str) -> Start:
    if text in ("earliest", "latest"):
        return cast("Start", text)
    try:
        return parse_moment(text, SystemClock())
    except (ValueError, OverflowError, OSError) as error:
        raise click.UsageError(f"--from {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Which messages of a topic are printed, and how."""

    topic: str
    start: Start
    tags: str | None = None
    sql: str | None = None
    key: str | None = None
    grep: str | None = None
    count: int | None = None
    template: str | None = None

    async def show(self, session: Session, output: str) -> None:
        if output == "csv":
            raise click.UsageError("a stream has no csv form: take json, one object a line, or --template")
        view = View(format=output)
        template = self._template()
        left = self.count
        rows = follow(session, self.topic, start=self.start, wanted=Sql(self.sql) if self.sql else self.tags)
        try:
            async for row in rows:
                if not self._wants(row):
                    continue
                text = rendered(template, row) if self.template or output == "table" else line_text(view, row)
                click.echo(text, nl=not text.endswith("\n"))
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
        finally:
            await rows.aclose()  # type: ignore[attr-defined]

    def _wants(self, row: MessageRow) -> bool:
        if self.key is not None and self.key not in row.keys:
            return False
        return self.grep is None or self.grep in row.body

    def _template(self) -> str:
        template = (self.template or _PLAIN).replace("\\n", "\n").replace("\\t", "\t")
        known = {*MessageRow.__struct_fields__, "place"}
        try:
            template.format_map(dict.fromkeys(known, ""))
        except (KeyError, ValueError, IndexError) as error:
            names = ", ".join(sorted(known))
            raise click.UsageError(f"--template does not fit: {error}; fields are {names}") from None
        return template


def rendered(template: str, row: MessageRow) -> str:
    """The template filled in; what comes from the message cannot command the terminal."""
    texts = {name: printable(_text(name, value)) for name, value in fields_of(row).items()}
    texts["place"] = f"{row.broker}/{row.queue}@{row.offset}"
    return template.format_map(texts)


def _text(name: str, value: object) -> str:
    if name in _MOMENTS:
        return local_time(value)  # type: ignore[arg-type]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
