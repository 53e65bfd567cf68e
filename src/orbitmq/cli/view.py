"""How rows are shown: chosen, sorted, paged, and written as a table, JSON, YAML or CSV.

Field names are those of the row's struct, in every form but the table's headings. Times are ISO 8601 in UTC for programs, local
for people.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

FORMATS: Final = ("table", "json", "yaml", "csv")

_CONDITION: Final = re.compile(r"(\w+)\s*(!=|>=|<=|=|<|>)(.*)", re.DOTALL)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    field: str
    operator: str
    value: str

    def holds(self, row: Row) -> bool:
        found = row[self.field]
        if self.operator in ("=", "!="):
            texts = [_plain(one) for one in found] if isinstance(found, list) else [_plain(found)]
            return any(fnmatchcase(text, self.value) for text in texts) == (self.operator == "=")
        if not isinstance(found, int | float):
            return False
        limit = float(self.value)
        return {
            "<": found < limit,
            ">": found > limit,
            "<=": found <= limit,
            ">=": found >= limit,
        }[self.operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the user wants to see of what was found."""

    format: str = "table"
    fields: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    sort: str | None = None
    limit: int | None = None
    skip: int = 0
    watch_seconds: float | None = None


def conditions_from(texts: Iterable[str]) -> tuple[Condition, ...]:
    found = []
    for text in texts:
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--where {text!r} is no condition: write FIELD=PATTERN, FIELD>NUMBER, ...")
        field, operator, value = parts.groups()
        if operator not in ("=", "!=") and not _is_number(value):
            raise click.UsageError(f"--where {text!r} compares with {value!r}, which is no number")
        found.append(Condition(field, operator, value.strip()))
    return tuple(found)


# ---- rows


async def show_rows(
    view: View,
    row_type: type[msgspec.Struct],
    fetch: Callable[[], Awaitable[Sequence[msgspec.Struct]]],
    columns: Sequence[str] = (),
) -> None:
    """Fetch and show, once or until interrupted. `columns` are the table's, when the user names no fields."""
    import asyncio

    check_fields(view, row_type)
    while True:
        rows = chosen(view, await fetch())
        text = rows_text(view, row_type, rows, columns)
        if view.watch_seconds is None:
            click.echo(text, nl=False)
            return
        if view.format == "table":
            click.clear()
            click.echo(f"every {view.watch_seconds:g} s, Ctrl-C ends\n")
        click.echo(text, nl=False)
        await asyncio.sleep(view.watch_seconds)


def check_fields(view: View, row_type: type[msgspec.Struct]) -> None:
    known = row_type.__struct_fields__
    sort = (view.sort or "").removeprefix("-")
    for name in (*view.fields, *(one.field for one in view.conditions), *([sort] if sort else [])):
        if name not in known:
            raise click.UsageError(f"there is no field {name!r}: fields are {', '.join(known)}")


def chosen(view: View, found: Sequence[msgspec.Struct]) -> list[Row]:
    rows = [fields_of(row) for row in found]
    rows = [row for row in rows if all(one.holds(row) for one in view.conditions)]
    if view.sort:
        name = view.sort.removeprefix("-")
        rows.sort(key=lambda row: (row[name] is not None, row[name]), reverse=view.sort.startswith("-"))
    end = None if view.limit is None else view.skip + view.limit
    rows = rows[view.skip : end]
    return [{name: row[name] for name in view.fields} for row in rows] if view.fields else rows


def rows_text(view: View, row_type: type[msgspec.Struct], rows: Sequence[Row], columns: Sequence[str]) -> str:
    names = view.fields or row_type.__struct_fields__
    if view.format == "json":
        encoded = msgspec.json.encode(rows)
        text = encoded if view.watch_seconds is not None else msgspec.json.format(encoded, indent=2)
        return text.decode() + "\n"
    if view.format == "yaml":
        return yaml_text(rows)
    if view.format == "csv":
        return csv_text(names, rows)
    shown = view.fields or tuple(columns) or names
    if not rows:
        return "nothing found\n"
    return table_text(
        [name.replace("_", " ").upper() for name in shown], [[row[name] for name in shown] for row in rows]
    )


def line_text(view: View, row: msgspec.Struct) -> str:
    """One row of a stream, in the forms that can be written row by row."""
    fields = fields_of(row)
    wanted = {name: fields[name] for name in view.fields} if view.fields else fields
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
    if isinstance(fields.get("summary"), dict):
        fields = {**fields.pop("summary"), **fields}
    simple = {name: value for name, value in fields.items() if not _is_table(value)}
    width = max(len(name) for name in simple) if simple else 0
    parts = [
        "".join(f"{name.replace('_', ' '):<{width}}  {_cell(value)}".rstrip() + "\n" for name, value in simple.items())
    ]
    for name, value in fields.items():
        if not _is_table(value):
            continue
        if isinstance(value, dict):
            parts.append(
                f"\n{name.replace('_', ' ')}\n" + table_text(("NAME", "VALUE"), [list(one) for one in value.items()])
            )
        else:
            titles = [title.replace("_", " ").upper() for title in value[0]]
            parts.append(f"\n{name.replace('_', ' ')}\n" + table_text(titles, [list(row.values()) for row in value]))
    return "".join(parts)


def _is_table(value: object) -> bool:
    if isinstance(value, dict):
        return len(value) > 0
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict)


# ---- forms


def fields_of(struct: msgspec.Struct) -> Row:
    plain: Row = msgspec.to_builtins(struct, builtin_types=(datetime,))
    return plain


def table_text(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they must be, numbers to the right; nothing is cut off."""
    if not rows:
        return ""
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(len(row[at]) for row in cells)) for at, title in enumerate(titles)]
    is_number = [
        any(map(_is_figure, column)) and all(map(_is_figure_or_none, column)) for column in zip(*rows, strict=True)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        )
        return "  ".join(padded).rstrip() + "\n"

    return click.style(line(titles), bold=True) + "".join(map(line, cells))


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
    return _plain(value)


def _plain(value: object) -> str:
    """As JSON would show it, without quotes."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode().strip('"')


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_figure_or_none(value: object) -> bool:
    return value is None or _is_figure(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
