"""Settings explained: what a server's settings are, as rows for people. Servers say what theirs mean in `settings_explained.py`."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

AT_ONCE: Final = "at once"
AT_START: Final = "at the next start"
NEVER: Final = "no"
_TYPES: Final = {bool: "true/false", int: "number", str: "text"}


class Explanation(NamedTuple):
    section: str
    unit: str
    meaning: str
    default: str  # in words, where it depends on the machine


class SettingRow(NamedTuple):
    """One setting as the documents show it."""

    section: str
    key: str
    type: str
    default: str
    unit: str
    change_counts: str  # when a change from afar counts, if there can be one
    meaning: str


def read_explanations(text: str) -> Mapping[str, Explanation]:
    """Lines of `key | unit | meaning | default`, under sections that begin with `#`; the default may be left out."""
    explained: dict[str, Explanation] = {}
    section = ""
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("# "):
            section = line.removeprefix("# ")
            continue
        key, unit, meaning, *default = (part.strip() for part in line.split("|"))
        assert key not in explained, f"{key} is explained twice"
        explained[key] = Explanation(section, unit, meaning, default[0] if default else "")
    return types.MappingProxyType(explained)


def setting_rows(
    kind: type[msgspec.Struct],
    explained: Mapping[str, Explanation],
    *,
    never: Collection[str],
    at_next_start: Collection[str],
) -> Iterable[SettingRow]:
    """Every setting that is explained, in that order."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, (section, unit, meaning, default_in_words) in explained.items():
        field = fields[key]
        counts = NEVER if key in never else AT_START if key in at_next_start else AT_ONCE
        default = default_in_words or _text(field.default)
        yield SettingRow(section, key, _TYPES[_plain(field.type)], default, unit, counts, meaning)


def rows_in_words(explained: Mapping[str, Explanation]) -> Iterable[SettingRow]:
    """Of settings that are no fields of a struct, and that nothing but a restart changes."""
    for key, (section, unit, meaning, default) in explained.items():
        yield SettingRow(section, key, _TYPES[str], default, unit, NEVER, meaning)


def _plain(kind: Any) -> type:
    """Without what else is said of it: Annotated[int, ...] is an int."""
    origin: type = getattr(kind, "__origin__", kind)
    return origin


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
