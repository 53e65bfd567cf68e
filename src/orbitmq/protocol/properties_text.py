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
_ESCAPED_CONTROLS: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
# Java reads files as Latin-1, so beyond ASCII only escapes are safe.
_IN_KEY: Final = re.compile(r"[\\=:#! ]|[^ -~]")
_IN_VALUE: Final = re.compile(r"\\|^ |[^ -~]")
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
    """`key=value` lines sorted by key, unescaped: what Apache's servers answer, and people like to read."""
    return "".join(f"{key}={properties[key]}\n" for key in sorted(properties))


def properties_file(properties: Mapping[str, str]) -> str:
    """The same lines, escaped so that whoever reads them gets the same map. Java: Properties.store"""
    return "".join(f"{_escape(key, _IN_KEY)}={_escape(properties[key], _IN_VALUE)}\n" for key in sorted(properties))


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


def _escape(text: str, special: re.Pattern[str]) -> str:
    return special.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in _ESCAPED_CONTROLS:
        return _ESCAPED_CONTROLS[character]
    if " " <= character <= "~":
        return "\\" + character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    # Escapes name UTF-16 units: join the pairs.
    units = _ESCAPE.sub(_unescaped, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")


def _unescaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    if escape.startswith("u"):
        if len(escape) != 5:
            raise BodyError(
                f"properties text has the broken escape \\{escape}", hint="write \\uXXXX with four hex digits"
            )
        return chr(int(escape[1:], 16))
    return _CONTROL_ESCAPES.get(escape, escape)
