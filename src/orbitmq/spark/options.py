"""Options as Spark hands them over: texts under names whose case does not matter. Read, checked, and unknown ones named.

A misspelt option that nobody reads is the costliest of errors: the query runs, on other data than its author thinks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What Spark itself, or its SQL catalog, adds to the options of a source or sink.
_FROM_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "serialization.format"})
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


class Options:
    """The options of one read or write; each is asked for by its first name, and may have been given by any."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, tuple[str, ...]], what: str) -> None:
        """`known`: the name of each option, and its other names. ConfigError when one is given that is not among them."""
        self._values: dict[str, tuple[str, str]] = {}  # name -> the name it was given under, value
        by_lower = {alias.lower(): name for name, aliases in known.items() for alias in (name, *aliases)}
        for given_name, value in given.items():
            name = by_lower.get(given_name.lower())
            if name is None:
                if given_name.lower() not in _FROM_SPARK:
                    raise ConfigError(f"{what} has no option {given_name!r}", hint=_nearest(given_name, known))
                continue
            if name in self._values and self._values[name][1] != value:
                raise ConfigError(
                    f"options {self._values[name][0]} and {given_name} mean the same and say different things",
                    hint=f"give {name} alone",
                )
            self._values[name] = (given_name, value)

    def text(self, name: str, default: str = "") -> str:
        return self._values[name][1].strip() if name in self._values else default

    def given(self, *names: str) -> list[str]:
        """Those of the names that have a value."""
        return [name for name in names if self.text(name)]

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if not text:
            return default
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise self.wrong(name, "true or false")

    def number(self, name: str, default: int | None = None, at_least: int = 1) -> int | None:
        text = self.text(name).replace("_", "")
        if not text:
            return default
        if not text.isdecimal() or int(text) < at_least:
            raise self.wrong(name, f"a whole number of at least {at_least}")
        return int(text)

    def duration_ms(self, name: str, default: int) -> int:
        """`15m`, `30 s`, `250ms`; a number alone is milliseconds."""
        text = self.text(name).lower().replace(" ", "")
        if not text:
            return default
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = _UNITS_MS.get(text[len(digits) :] or "ms")
        if not digits.isdecimal() or unit is None:
            raise self.wrong(name, "a duration such as 500ms, 30s or 15m")
        return int(digits) * unit

    def size(self, name: str) -> int | None:
        """`64mb`, `1g`; a number alone is bytes."""
        text = self.text(name).lower().replace(" ", "")
        if not text:
            return None
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = _SIZES.get(text[len(digits) :])
        if not digits.isdecimal() or unit is None or int(digits) < 1:
            raise self.wrong(name, "a size such as 65536, 64mb or 1g")
        return int(digits) * unit

    def moment_ms(self, name: str) -> int | None:
        """Milliseconds since 1970, or ISO 8601 (without a zone: UTC)."""
        text = self.text(name)
        return moment_ms(text, name) if text else None

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        by_lower = {value.lower(): value for value in allowed}
        text = self.text(name).lower()
        if not text:
            return default
        if text not in by_lower:
            raise self.wrong(name, f"one of {', '.join(by_lower.values())}")
        return by_lower[text]

    def wrong(self, name: str, wanted: str) -> ConfigError:
        given_name, value = self._values[name]
        return ConfigError(f"option {given_name} is {value!r}", hint=f"it must be {wanted}")


def moment_ms(text: str, what: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{what} is {text!r}, which is no time", hint="give milliseconds since 1970 or 2026-11-15T18:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _nearest(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    names = {option.lower(): option for option in known}
    found = get_close_matches(name.lower(), names, 1, cutoff=0.6)
    return f"did you mean {names[found[0]]}?" if found else f"the options are {', '.join(sorted(known))}"
