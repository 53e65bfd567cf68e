"""A compiled filter. Java: ExpressionMessageFilter, SqlFilter"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from orbitmq.broker.sql_filter.parser import Parser
from orbitmq.broker.sql_filter.values import Incomparable

if TYPE_CHECKING:
    from collections.abc import Mapping


class SqlFilter:
    def __init__(self, text: str) -> None:
        """RequestFailed when the text is not a filter."""
        self.text = text
        self._evaluate = Parser(text).parse().evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Only if it is surely true: unknown is no, and so is what cannot be compared."""
        try:
            return self._evaluate(properties) is True
        except Incomparable:
            return False


_short_filter: Final = lru_cache(maxsize=100)(SqlFilter)
_long_filter: Final = lru_cache(maxsize=8)(SqlFilter)  # it takes a hundred times its text
_SHORT_CHARACTERS: Final = 2048


def compile_filter(text: str) -> SqlFilter:
    """Many consumers of a group ask for the same one."""
    return _short_filter(text) if len(text) <= _SHORT_CHARACTERS else _long_filter(text)
