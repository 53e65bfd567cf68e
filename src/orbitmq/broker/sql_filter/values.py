"""Comparing values as Java does: by class first, with texts read as the other side's kind of number.

Properties are always texts. A whole number in a filter is an Integer, or a Long if it is too large for one; that decides
what a text beside it may look like: '1.5' is no Integer, and comparing it with 1 fails, which means "no match".

Java: ComparisonExpression.__compare
"""

from __future__ import annotations

import math
import re
from typing import Final

Value = str | int | float | bool | None

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,4000}")  # of more, Python makes no number
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))  # what String.trim takes off
# Digits are never given back (`++`): of a long text that is no number in the end, every way to part it would be tried.
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)")
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?"
)


class Long(int):
    """A whole number too large for an Integer."""


class Incomparable(Exception):
    """Java throws here; the message does not match."""


def compare(left: Value, right: Value) -> int:
    """Below, at or above zero. -1 also for kinds that have nothing in common."""
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            raise Incomparable  # Java casts the wrong side, which fails
        return -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        left = _number_like(right, left)
    elif isinstance(right, str):
        right = _number_like(left, right)
    elif isinstance(right, bool):
        return -1
    return _compare_numbers(left, right)


def as_double(text: str) -> float:
    """Double.valueOf"""
    trimmed = text.strip(_JAVA_BLANKS)
    if _DOUBLE.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD") if trimmed[-1:] in "fFdD" else trimmed)
    if _HEX_DOUBLE.fullmatch(trimmed):
        return _from_hex(trimmed.rstrip("fFdD"))
    raise Incomparable


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def _number_like(sample: Value, text: str) -> int | float:
    """`text` as a number of the same class as `sample`."""
    if isinstance(sample, float):
        return as_double(text)
    bits = 64 if isinstance(sample, Long) else 32
    if _WHOLE.fullmatch(text) is None:
        raise Incomparable
    number = int(text)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise Incomparable
    return number


def _compare_numbers(left: Value, right: Value) -> int:
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left or 0), float(right or 0))
    assert isinstance(left, int)
    assert isinstance(right, int)
    return (left > right) - (left < right)


def _compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN equals itself and is above everything, and -0.0 is below 0.0."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0:
        return int(math.copysign(1, left) - math.copysign(1, right)) // 2
    return (left > right) - (left < right)
