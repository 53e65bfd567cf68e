"""What a verb prints: lines in the original's form, and the same as data for `--output json`.

Java: System.out.printf in `tools.command`
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orbitmq.message.moments import moment_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Report:
    """Collects both."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.data: dict[str, Any] = {}

    def line(self, text: str = "") -> None:
        self.lines.append(text)

    def fact(self, text: str, **data: object) -> None:
        """A line, and what it says as data."""
        self.line(text)
        self.data.update(data)

    def items(self, name: str) -> list[Any]:
        """A list of the data, to be filled: it is there also when nothing is found."""
        found: list[Any] = self.data.setdefault(name, [])
        return found

    def table(
        self, titles_form: str, titles: Sequence[str], form: str, rows: Sequence[Sequence[object]], name: str = "rows"
    ) -> None:
        """`printf` forms, one for the titles and one for the rows; the original's two are not always alike."""
        self.line(titles_form % tuple(titles))
        for row in rows:
            self.line(form % tuple(map(java_text, row)))
        keys = [key_of(title) for title in titles]
        self.data[name] = [dict(zip(keys, map(_plain, row), strict=True)) for row in rows]


def key_of(title: str) -> str:
    """`#Broker Name` -> brokerName, `#InTPS(LOAD)` -> inTPSLoad."""
    words: list[str] = re.findall(r"[A-Za-z0-9]+", title)
    head, *tail = words
    first = head.lower() if head.isupper() else head[0].lower() + head[1:]
    return first + "".join(word.capitalize() if word.isupper() else word[0].upper() + word[1:] for word in tail)


def java_text(value: object) -> object:
    """Booleans and nothing as Java writes them; numbers stay numbers for the form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else value


def _plain(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


def java_map(table: Mapping[str, object]) -> str:
    """{a=1, b=2}"""
    return "{" + ", ".join(f"{key}={java_text(value)}" for key, value in table.items()) + "}"


def cut(text: str, size: int) -> str:
    """Java: UtilAll.frontStringAtLeast"""
    return text[:size]


def human_time(at_ms: int) -> str:
    """Java: UtilAll.timeMillisToHumanString2"""
    at = moment_at(at_ms).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S},{at_ms % 1000:03d}"


def java_double(value: float) -> str:
    """As Double.toString writes what is neither very large nor very small."""
    return str(float(value))
