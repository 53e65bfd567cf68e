"""Java's `.properties` text: configuration files, and the bodies of the get/update-config requests.

Comments start with `#` or `!`; key and value are parted by `=`, `:` or blanks; a trailing backslash continues a line;
`\\t \\n \\r \\f \\uXXXX` are escapes, and any other escaped character stands for itself.

Java: java.util.Properties, MixAll.string2Properties, MixAll.properties2String
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from orbitmq.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_CONTROL_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends at the first separator that is not escaped.
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Later keys win. Everything is text; a bad `\\u` escape is a BodyError."""
    properties = {}
    for line in _logical_lines(text):
        key, value = _ENTRY.fullmatch(line).groups()  # type: ignore[union-attr]  # it matches any text
        properties[_unescape(key)] = _unescape(value)
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """`key=value` lines sorted by key, unescaped, as Apache's servers answer and store them."""
    return "".join(f"{key}={properties[key]}\n" for key in sorted(properties))


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        trailing_backslashes = len(line) - len(line.rstrip("\\"))
        if trailing_backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    if escape.startswith("u"):
        if len(escape) != 5:
            raise BodyError(
                f"properties text has the broken escape \\{escape}", hint="write \\uXXXX with four hex digits"
            )
        return chr(int(escape[1:], 16))
    return _CONTROL_ESCAPES.get(escape, escape)
