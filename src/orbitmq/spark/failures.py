"""Errors that a person can act on: one sentence out of a worker, found again inside what Spark makes of it.

What a worker raises reaches the user as text: Spark's error class, a Python traceback, the message, and often the same once
more below a page of JVM frames. The frames are of no use when an option is misspelt, so ours are cut off where Spark calls
us, and `plain_reason` gives the sentence alone.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_OURS: Final = re.compile(r"^(?:\S*\s)?orbitmq\.errors\.\w+: (.+?)\s*$", re.MULTILINE)


def plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Where Spark calls us: an error of ours leaves without the frames below."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except OrbitError as error:
            raise error.with_traceback(None) from None

    return call


def plain_errors_in(items: Iterator[T]) -> Iterator[T]:
    """The same for what is read lazily."""
    try:
        yield from items
    except OrbitError as error:
        raise error.with_traceback(None) from None


def plain_reason(error: BaseException) -> str | None:
    """The sentence of ours inside an exception of Spark's; None when the failure was not ours."""
    if isinstance(error, OrbitError):
        return str(error)
    found = _OURS.search(str(error))
    return found[1] if found is not None else None
