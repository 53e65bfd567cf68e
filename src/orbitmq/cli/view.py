"""How rows are shown: as a table, JSON, YAML or CSV, once or again and again. Which of them: `choosing.py`.

Field names are those of the row's struct, in every form but the table's headings. Times are ISO 8601 in UTC for programs, local
for people.
"""

from __future__ import annotations

import csv
import io
import sys
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from orbitmq.cli.choosing import Choice, Row, fields_of, plain_text
from orbitmq.cli.failures import one_line
from orbitmq.clock import SystemClock
from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from orbitmq.admin.session import Session

_NOTHING: Final = object()
FORMATS: Final = ("table", "json", "yaml", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the user wants to see of what was found, and how."""

    format: str = "table"
    choice: Choice = field(default_factory=Choice)
    watch_seconds: float | None = None


# ---- rows


async def show_rows(
    session: Session,
    view: View,
    row_type: type[msgspec.Struct],
    fetch: Callable[[], Awaitable[Sequence[msgspec.Struct]]],
    columns: Sequence[str] = (),
    at_most: Mapping[str, int] = {},
) -> None:
    """Fetch and show, once or until interrupted. `columns` are the table's, when the user names no fields; of some it then shows
    so many characters `at_most`.
    """
    import asyncio

    choice = view.choice.checked(row_type)
    click.echo(rows_text(view, row_type, choice.of(await fetch()), columns, at_most), nl=False)
    tell_missing(session)
    while view.watch_seconds is not None:
        await asyncio.sleep(view.watch_seconds)
        try:
            rows = choice.of(await fetch())
        except OrbitError as error:  # what was there a moment ago may be there again in a moment
            click.echo(f"orbitmq: {one_line(error)}; looking again every {view.watch_seconds:g} s", err=True)
            session.silent.clear()
        else:
            click.echo(rows_text(view, row_type, rows, columns, at_most), nl=False)
            tell_missing(session)


def tell_missing(session: Session) -> None:
    """A line for each broker whose part is not in what was shown. The next question tries it again."""
    for address, reason in session.silent.items():
        click.echo(f"orbitmq: what broker {address} has is missing here: {printable(reason)}", err=True)
    session.silent.clear()


def rows_text(
    view: View,
    row_type: type[msgspec.Struct],
    rows: Sequence[Row],
    columns: Sequence[str] = (),
    at_most: Mapping[str, int] = {},
) -> str:
    names = view.choice.fields or row_type.__struct_fields__
    if view.format == "json":
        encoded = msgspec.json.encode(rows)
        text = encoded if view.watch_seconds is not None else msgspec.json.format(encoded, indent=2)
        return text.decode() + "\n"
    if view.format == "yaml":
        return ("---\n" if view.watch_seconds is not None else "") + yaml_text(rows)
    if view.format == "csv":
        return csv_text(names, rows)
    shown = view.choice.fields or tuple(columns) or names
    head = _watch_head(view.watch_seconds) if view.watch_seconds is not None else ""
    if not rows:
        return f"{head}nothing found\n"
    titles = [name.replace("_", " ").upper() for name in shown]
    limits = {} if view.choice.fields else at_most
    return head + table_text(titles, [[_shortened(row[name], limits.get(name)) for name in shown] for row in rows])


def _shortened(value: object, most: int | None) -> object:
    return value if most is None or len(text := str(value)) <= most else text[: most - 3] + "..."


def _watch_head(seconds: float) -> str:
    """Clears the screen, where there is one, and says what is seen and when."""
    clear = "\x1b[2J\x1b[H" if sys.stdout.isatty() else ""
    return f"{clear}{local_time(datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC))[:-4]}, every {seconds:g} s, Ctrl-C ends\n\n"


def line_text(view: View, row: msgspec.Struct) -> str:
    """One row of a stream, in the forms that can be written row by row."""
    fields = fields_of(row)
    wanted = {name: fields[name] for name in view.choice.fields} if view.choice.fields else fields
    if view.format == "yaml":
        return "---\n" + yaml_text(wanted)
    return msgspec.json.encode(wanted).decode() + "\n"


# ---- one thing


def show_document(view: View, found: msgspec.Struct) -> None:
    """One thing with parts: its fields, then its lists as tables."""
    fields = fields_of(found)
    if view.format == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(fields), indent=2))
    elif view.format == "yaml":
        click.echo(yaml_text(fields), nl=False)
    elif view.format == "csv":
        rows = [{"field": name, "value": value} for name, value in fields.items()]
        click.echo(csv_text(("field", "value"), rows), nl=False)
    else:
        click.echo(document_text(fields), nl=False)


def document_text(fields: Row) -> str:
    """Columns of its tables that only repeat a field above them are left out."""
    if isinstance(fields.get("summary"), dict):
        fields = {**fields.pop("summary"), **fields}
    simple = {name: value for name, value in fields.items() if not _is_table(value)}
    width = max(len(name) for name in simple) if simple else 0
    parts = [
        "".join(
            f"{name.replace('_', ' '):<{width}}  {_paragraph(value, width + 2)}".rstrip() + "\n"
            for name, value in simple.items()
        )
    ]
    for name, value in fields.items():
        if not _is_table(value):
            continue
        if isinstance(value, dict):
            parts.append(
                f"\n{name.replace('_', ' ')}\n" + table_text(("NAME", "VALUE"), [list(one) for one in value.items()])
            )
        else:
            telling = [key for key in value[0] if any(row[key] != simple.get(key, _NOTHING) for row in value)]
            titles = [title.replace("_", " ").upper() for title in telling]
            rows = [[row[key] for key in telling] for row in value]
            parts.append(f"\n{name.replace('_', ' ')}\n" + table_text(titles, rows))
    return "".join(parts)


def _paragraph(value: object, indent: int) -> str:
    """A text of several lines keeps them: many bodies are JSON that somebody has laid out."""
    if not isinstance(value, str) or "\n" not in value:
        return _cell(value)
    return ("\n" + " " * indent).join(printable(line.rstrip("\r")) for line in value.rstrip("\n").split("\n"))


def _is_table(value: object) -> bool:
    if isinstance(value, dict):
        return len(value) > 0
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict)


# ---- forms


def table_text(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they must be, numbers to the right; nothing is cut off."""
    if not rows:
        return ""
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(_width(row[at]) for row in cells)) for at, title in enumerate(titles)]
    is_number = [
        any(map(_is_figure, column)) and all(map(_is_figure_or_none, column)) for column in zip(*rows, strict=True)
    ]

    def line(row: Sequence[str]) -> str:
        padded = []
        for cell, width, right in zip(row, widths, is_number, strict=True):
            space = " " * (width - _width(cell))
            padded.append(space + cell if right else cell + space)
        return "  ".join(padded).rstrip()

    lines = [click.style(line(titles), bold=True), *map(line, cells)]
    return "".join(f"{text}\n" for text in lines)


def _width(text: str) -> int:
    """Columns that a terminal needs for it: Chinese characters take two, accents on their own none."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.combining(one) else 1 for one in text
    )


def csv_text(names: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_cell(row[name]) for name in names] for row in rows)
    return text.getvalue()


def yaml_text(value: object) -> str:
    import yaml

    # Through JSON, so that both say the same: times as ISO texts, nothing but plain values.
    plain = msgspec.json.decode(msgspec.json.encode(value))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def local_time(at: datetime) -> str:
    there = at.astimezone()
    return f"{there:%Y-%m-%d %H:%M:%S}.{there.microsecond // 1000:03d}"


def printable(text: str) -> str:
    """Messages may hold anything; a terminal must not obey it."""
    return "".join(character if character.isprintable() else "." for character in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return local_time(value)
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return printable(", ".join(map(str, value))) or "-"
    if isinstance(value, dict):
        return printable(", ".join(f"{key}={item}" for key, item in value.items())) or "-"
    return printable(str(value))


def _csv_cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return plain_text(value)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_figure_or_none(value: object) -> bool:
    return value is None or _is_figure(value)
