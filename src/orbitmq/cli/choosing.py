"""Which rows of what was found are shown, and in which order: `--where`, `--sort`, `--limit`, `--skip`, `--fields`."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Row = dict[str, Any]

_CONDITION: Final = re.compile(r"(\w+)\s*(!=|>=|<=|=|<|>)(.*)", re.DOTALL)
_ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    field: str
    operator: str
    value: str
    limit: float | datetime | None = None  # what `value` means to <, >, <= and >=

    def holds(self, row: Row) -> bool:
        found = row[self.field]
        if self.operator not in _ORDERS:
            texts = [text for one in (found if isinstance(found, list) else [found]) for text in _texts(one)]
            return any(fnmatchcase(text, self.value) for text in texts) == (self.operator == "=")
        return found is not None and bool(_ORDERS[self.operator](found, self.limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The rows and fields that the user wants to see."""

    fields: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    sort: str | None = None
    limit: int | None = None
    skip: int = 0

    @property
    def named(self) -> set[str]:
        """Every field that the user mentions."""
        sort = (self.sort or "").removeprefix("-")
        return {*self.fields, *(one.field for one in self.conditions), *([sort] if sort else [])}

    def checked(self, row_type: type[msgspec.Struct]) -> Choice:
        """The same for rows of this type; UsageError when they have no such field, or it cannot be compared so."""
        known = row_type.__struct_fields__
        for name in sorted(self.named):
            if name not in known:
                raise click.UsageError(f"there is no field {name!r}: fields are {', '.join(known)}")
        return replace(self, conditions=tuple(_with_limit(one, row_type) for one in self.conditions))

    def of(self, found: Sequence[msgspec.Struct]) -> list[Row]:
        rows = [fields_of(row) for row in found]
        rows = [row for row in rows if all(one.holds(row) for one in self.conditions)]
        if self.sort:
            name = self.sort.removeprefix("-")
            rows.sort(key=lambda row: (row[name] is not None, _sortable(row[name])), reverse=self.sort.startswith("-"))
        end = None if self.limit is None else self.skip + self.limit
        rows = rows[self.skip : end]
        return [{name: row[name] for name in self.fields} for row in rows] if self.fields else rows


def conditions_from(texts: Iterable[str]) -> tuple[Condition, ...]:
    found = []
    for text in texts:
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--where {text!r} is no condition: write FIELD=PATTERN, FIELD>NUMBER, ...")
        field, sign, value = parts.groups()
        found.append(Condition(field, sign, value.strip()))
    return tuple(found)


def fields_of(struct: msgspec.Struct) -> Row:
    plain: Row = msgspec.to_builtins(struct, builtin_types=(datetime,))
    return plain


def plain_text(value: object) -> str:
    """As JSON would show it, without quotes."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode().strip('"')


def _texts(value: object) -> tuple[str, ...]:
    """What a pattern may be compared with: tables say yes where JSON says true."""
    if isinstance(value, bool):
        return ("true", "yes") if value else ("false", "no")
    return (plain_text(value),)


def _with_limit(condition: Condition, row_type: type[msgspec.Struct]) -> Condition:
    if condition.operator not in _ORDERS:
        return condition
    hint = get_type_hints(row_type)[condition.field]
    kinds = set(get_args(hint) or (hint,)) - {type(None)}
    text = f"{condition.field}{condition.operator}{condition.value}"
    if kinds == {datetime}:
        return replace(condition, limit=_moment(text, condition.value))
    if not kinds <= {int, float}:
        raise click.UsageError(
            f"--where {text!r}: {condition.field} is neither number nor time; compare it with = or !="
        )
    try:
        return replace(condition, limit=float(condition.value))
    except ValueError:
        raise click.UsageError(f"--where {text!r} compares with {condition.value!r}, which is no number") from None


def _moment(text: str, value: str) -> datetime:
    from orbitmq.cli.times import parse_moment
    from orbitmq.clock import SystemClock

    try:
        return parse_moment(value, SystemClock())
    except (ValueError, OverflowError, OSError) as error:
        raise click.UsageError(f"--where {text!r}: {error}") from None


def _sortable(value: object) -> Any:
    if isinstance(value, dict):
        return sorted((str(key), str(item)) for key, item in value.items())
    return [str(item) for item in value] if isinstance(value, list) else value
