"""Filters as Spark hands them over: ANDed comparisons of one column with values. All go back to it: they only narrow what is read.

Spark keeps what was planned with them for the frame, not for the query (PythonDataSourceV2.setReadInfo): every scan of one `load()` reads
by what the last one pushed, a scan without a filter too. No reader can notice that. So nothing of ours turns the option on, and who does
asks each frame one question.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In


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
