"""`--set KEY=VALUE`: settings given on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def assigned(assignments: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment} has no value", hint="write --set key=value")
        pairs[key.strip()] = value.strip()
    return pairs
