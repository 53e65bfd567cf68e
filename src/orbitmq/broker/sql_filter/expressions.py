"""The parts of a filter: each knows how to be evaluated, and what it may be combined with.

A part evaluates to a value, or None for "unknown": SQL's logic has three values. Combining checks what Java checks when
it parses.

Java: Expression and its subclasses
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orbitmq.broker.sql_filter.values import Incomparable, Long, Value, as_double, compare

Evaluate = Callable[[Mapping[str, str]], Value]

_LARGEST_INTEGER: Final = 2**31 - 1
_LARGEST_LONG: Final = 2**63 - 1
_LONG_DIGITS: Final = 19
_SMALLEST_DOUBLE: Final = 5e-324
_MAX_DEPTH: Final = 200  # `a = b = c = ...` nests as well; Python has 1,000 calls for all that a broker does


class BadExpression(Exception):
    """These parts cannot be combined."""


@dataclass(frozen=True, slots=True)
class Expression:
    evaluate: Evaluate
    is_boolean: bool = False  # a condition, or TRUE, FALSE, NULL
    is_constant: bool = False
    constant: Value = None
    is_property: bool = False
    depth: int = 1  # of calls that evaluating it takes


def property_named(name: str) -> Expression:
    return Expression(lambda properties: properties.get(name), is_property=True)


def text_constant(text: str) -> Expression:
    return _constant(text)


def whole_number(text: str) -> Expression:
    digits = text.rstrip("lL")
    number = int(digits) if len(digits) <= _LONG_DIGITS else _LARGEST_LONG + 1
    if number > _LARGEST_LONG:
        raise BadExpression(f"{text[:30]} is too large")
    return _constant(number if number <= _LARGEST_INTEGER else Long(number))


def decimal_number(text: str) -> Expression:
    number = float(text)
    if number == float("inf"):
        raise BadExpression(f"{text} is too large")
    if number < _SMALLEST_DOUBLE:
        raise BadExpression(f"{text} is too small; zero as a decimal is refused too, as Apache refuses it")
    return _constant(number)


def _constant(value: Value) -> Expression:
    return Expression(lambda properties: value, is_constant=True, constant=value)


TRUE: Final = Expression(lambda properties: True, is_boolean=True, is_constant=True, constant=True)
FALSE: Final = Expression(lambda properties: False, is_boolean=True, is_constant=True, constant=False)
NULL: Final = Expression(lambda properties: None, is_boolean=True, is_constant=True, constant=None)


def condition(expression: Expression) -> Expression:
    """What stands where a condition must. A bare property is one, never true: properties are texts."""
    if expression.is_boolean:
        return expression
    if not expression.is_property:
        raise BadExpression("this is no condition")
    evaluate = expression.evaluate
    return _boolean(lambda properties: None if evaluate(properties) is None else False, expression)


def _boolean(evaluate: Evaluate, *parts: Expression) -> Expression:
    """`evaluate` calls these parts, one after the other."""
    return Expression(evaluate, is_boolean=True, depth=_around(*parts))


def _around(*parts: Expression) -> int:
    depth = 1 + max(part.depth for part in parts)
    if depth > _MAX_DEPTH:
        raise BadExpression(f"it is nested more than {_MAX_DEPTH} deep")
    return depth


# ---- logic


def either(*parts: Expression) -> Expression:
    """One loop over all of them, not one call inside the other: a filter may have thousands."""
    if len(parts) == 1:
        return parts[0]
    conditions = [condition(part) for part in parts]
    evaluations = tuple(part.evaluate for part in conditions)

    def evaluate(properties: Mapping[str, str]) -> Value:
        unknown = False
        for is_true in evaluations:
            value = is_true(properties)
            if value:
                return True
            unknown |= value is None
        return None if unknown else False

    return _boolean(evaluate, *conditions)


def both(*parts: Expression) -> Expression:
    """And all others, if there are more."""
    if len(parts) == 1:
        return parts[0]
    conditions = [condition(part) for part in parts]
    evaluations = tuple(part.evaluate for part in conditions)

    def evaluate(properties: Mapping[str, str]) -> Value:
        unknown = False
        for is_true in evaluations:
            value = is_true(properties)
            if value is False:
                return False
            unknown |= value is None
        return None if unknown else True

    return _boolean(evaluate, *conditions)


def negation(expression: Expression) -> Expression:
    negated = condition(expression)
    inner = negated.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _boolean(evaluate, negated)


def minus(expression: Expression) -> Expression:
    inner = expression.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return Expression(evaluate, depth=_around(expression))


# ---- comparisons


def equal(first: Expression, second: Expression) -> Expression:
    for operand in (first, second):
        if operand.is_constant and operand.constant is None:
            raise BadExpression("nothing equals NULL; write IS NULL")
    if first.is_constant and second.is_constant and first.is_boolean and not second.is_boolean:
        raise BadExpression("TRUE and FALSE can only be compared with conditions")
    return _equal(first, second)


def not_equal(first: Expression, second: Expression) -> Expression:
    return negation(equal(first, second))


def is_null(expression: Expression) -> Expression:
    return _equal(expression, NULL)


def is_not_null(expression: Expression) -> Expression:
    return negation(is_null(expression))


def _equal(first: Expression, second: Expression) -> Expression:
    left, right = first.evaluate, second.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        return compare(one, other) == 0

    return _boolean(evaluate, first, second)


def ordering(first: Expression, second: Expression, fits: Callable[[int], bool]) -> Expression:
    """`>`, `>=`, `<`, `<=`: for numbers, and for texts that are numbers."""
    _check_order(first, second)
    left, right = first.evaluate, second.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        order = _order(left(properties), right, properties)
        return None if order is None else fits(order)

    return _boolean(evaluate, first, second)


def _check_order(*operands: Expression) -> None:
    for operand in operands:
        if operand.is_boolean or (operand.is_constant and not isinstance(operand.constant, int | float)):
            raise BadExpression("only numbers have an order")


def _order(one: Value, right: Evaluate, properties: Mapping[str, str]) -> int | None:
    if one is None:
        return None
    other = right(properties)
    if other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        one, other = as_double(one), as_double(other)
    return compare(one, other)


def above(first: Expression, second: Expression) -> Expression:
    return ordering(first, second, lambda order: order > 0)


def at_least(first: Expression, second: Expression) -> Expression:
    return ordering(first, second, lambda order: order >= 0)


def below(first: Expression, second: Expression) -> Expression:
    return ordering(first, second, lambda order: order < 0)


def at_most(first: Expression, second: Expression) -> Expression:
    return ordering(first, second, lambda order: order <= 0)


def between(value: Expression, low: Expression, high: Expression, *, negated: bool) -> Expression:
    """`low <= value AND value <= high`, but for evaluating the value once: as two comparisons, BETWEENs inside each other
    doubled the work at every level.
    """
    if not negated and low.is_constant and high.is_constant:
        try:
            is_empty = low.constant is None or high.constant is None or compare(high.constant, low.constant) < 0
        except Incomparable:
            is_empty = True
        if is_empty:
            raise BadExpression("BETWEEN needs the smaller value first")
    _check_order(value, low)
    _check_order(value, high)
    inner, lowest, highest = value.evaluate, low.evaluate, high.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        one = inner(properties)
        above_low = _order(one, lowest, properties)
        if above_low is not None and above_low < 0:
            return negated
        above_high = _order(one, highest, properties)
        if above_high is not None and above_high > 0:
            return negated
        return None if above_low is None or above_high is None else not negated

    return _boolean(evaluate, value, low, high)


# ---- texts


def within(expression: Expression, texts: list[str], *, negated: bool) -> Expression:
    if not expression.is_property:
        raise BadExpression("IN needs a property on its left")
    inner, wanted = expression.evaluate, frozenset(texts)

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else (value in wanted) != negated

    return _boolean(evaluate, expression)


def text_test(expression: Expression, search: str, test: Callable[[str, str], bool], *, negated: bool) -> Expression:
    """CONTAINS and its kin. Without a text to look in or for, the answer is no, negated or not."""
    inner = expression.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if not search or not isinstance(value, str):
            return False
        return test(value, search) != negated

    return _boolean(evaluate, expression)
