"""Our SQL92 filters against Apache's own filter module: the same refusals and the same verdicts."""

import random
from collections.abc import Callable

import pytest

from orbitmq.broker.sql_filter import SqlFilter
from orbitmq.errors import RequestFailed
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP

pytestmark = INTEROP

_SEED = 20261115
_FILTERS = 6000

_NAMES = ["a", "b", "c", "A", "missing", "$d", "_e"]
_VALUES = [
    "5",
    "-5",
    "5.0",
    "1.5",
    "0",
    "007",
    "x",
    "true",
    "TRUE",
    " 7 ",
    "NaN",
    "1e3",
    "2147483648",
    "it's",
    "xyz",
    "1f",
    "+3",
]
_LITERALS = [
    "5", "0", "1", "3l", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1.5", "5.", ".5",
    "5E2", "1e400", "0.0", "'x'", "'5'", "'it''s'", "''", "TRUE", "false", "NULL", "007",
]  # fmt: skip
_JUNK = ["#", "(", ")", "'", "AND", "--", "/* c */", "-- c\n", ",", "IN", "NOT", "IS", "=", ";"]


class _Writer:
    """Writes filters that are mostly, but not always, well-formed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def filter(self) -> str:
        text = self._condition(3)
        if self._random.random() < 0.1:
            at = self._random.randrange(len(text) + 1)
            text = f"{text[:at]} {self._random.choice(_JUNK)} {text[at:]}"
        return text

    def message(self) -> dict[str, str]:
        return {name: self._random.choice(_VALUES) for name in _NAMES[:-1] if self._random.random() < 0.8}

    def _condition(self, depth: int) -> str:
        choice = self._random.random()
        if depth and choice < 0.35:
            joint = self._random.choice(["AND", "OR", "and", "oR"])
            return f"{self._condition(depth - 1)} {joint} {self._condition(depth - 1)}"
        if depth and choice < 0.5:
            return f"NOT ({self._condition(depth - 1)})"
        if depth and choice < 0.6:
            return f"({self._condition(depth - 1)})"
        return self._comparison()

    def _comparison(self) -> str:
        left, maybe_not = self._operand(), self._random.choice(["", "NOT "])
        kind = self._random.randrange(7)
        if kind <= 2:
            return f"{left} {self._random.choice(['=', '<>', '>', '>=', '<', '<='])} {self._operand()}"
        if kind == 3:
            return f"{left} {maybe_not}BETWEEN {self._operand()} AND {self._operand()}"
        if kind == 4:
            return f"{left} {maybe_not}IN ('x', '5', 'it''s')"
        if kind == 5:
            word = self._random.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"])
            return f"{left} {maybe_not}{word} {self._random.choice(['x', '5', ''])!r}"
        return f"{left} IS {maybe_not}NULL"

    def _operand(self) -> str:
        choice = self._random.random()
        if choice < 0.5:
            return self._random.choice(_NAMES)
        sign = self._random.choice(["", "", "", "-", "+", "- -"])
        return sign + self._random.choice(_LITERALS)


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
def test_thousands_of_filters_are_judged_as_apache_judges_them(java_client: Callable[[bool], JavaClient]) -> None:
    writer = _Writer(_SEED)
    filters = [writer.filter() for _ in range(_FILTERS)]
    messages = [writer.message() for _ in range(12)]

    theirs = java_client(False).call("JudgeFilters", filters=filters, messages=messages)

    ours = [_judged(text, messages) for text in filters]
    differences = [(text, one, other) for text, one, other in zip(filters, ours, theirs, strict=True) if one != other]
    assert differences == [], f"{len(differences)} of {len(filters)} (seed {_SEED})"
    accepted = [verdicts for verdicts in theirs if verdicts is not None]
    assert len(accepted) > _FILTERS // 4
    assert any(any(verdicts) for verdicts in accepted)


def _judged(text: str, messages: list[dict[str, str]]) -> list[bool] | None:
    try:
        compiled = SqlFilter(text)
    except RequestFailed:
        return None
    return [compiled.matches(message) for message in messages]
