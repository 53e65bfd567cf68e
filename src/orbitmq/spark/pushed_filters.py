"""Filters as Spark hands them over: ANDed comparisons of one column with values. Those that it must check itself go back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NEVER_NULL: Final = frozenset({"topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"})


def left_for_spark(filters: Sequence[Filter], takes: Callable[[Filter], bool]) -> list[Filter]:
    """Those that `takes` says no to. It is asked for each, and may make use of a filter without taking it."""
    taken = {id(one) for one in filters if takes(one)}
    # `tags = 'A'` comes with `tags IS NOT NULL`, which follows from it.
    certain = _NEVER_NULL | {column_of(one) for one in filters if id(one) in taken}
    taken |= {id(one) for one in filters if isinstance(one, IsNotNull) and column_of(one) in certain}
    return [one for one in filters if id(one) not in taken]


def column_of(one: Any) -> str:
    """Empty for a field inside of a column, and for what has no column."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def values_of(one: EqualTo | In) -> frozenset[Any]:
    """Those that a row may have: nothing equals NULL."""
    values = one.value if isinstance(one, In) else (one.value,)
    return frozenset(value for value in values if value is not None)


def is_lower_edge(one: Filter) -> bool:
    return isinstance(one, GreaterThan | GreaterThanOrEqual)
