"""Errors that a person can act on: one sentence out of a worker, found again inside what Spark makes of it.

What a worker raises reaches the user as text: Spark's error class, a Python traceback, the message, and often the same once
more below a page of JVM frames. The frames are of no use when an option is misspelt, so ours are cut off where Spark calls
us, and `own_error` makes the error again from its sentence: its kind and its code decide what a command exits with.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from orbitmq import errors
from orbitmq.errors import OrbitError, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_CODE: Final = "response code:"
_OURS: Final = re.compile(rf"^(?:\S*\s)?orbitmq\.errors\.(\w+): (.+?)[ \t\r]*$(?:\n{_CODE} (-?\d+))?", re.MULTILINE)
_KINDS: Final[dict[str, type[OrbitError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, OrbitError)
}


def plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Where Spark calls us: an error of ours leaves without the frames below."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except OrbitError as error:
            raise _bare(error) from None

    return call


def plain_errors_in(items: Iterator[T]) -> Iterator[T]:
    """The same for what is read lazily."""
    try:
        yield from items
    except OrbitError as error:
        raise _bare(error) from None


def _bare(error: OrbitError) -> OrbitError:
    """Without frames. A code is no part of the sentence, and only text gets through Spark: it goes as a note below."""
    if isinstance(error, RequestFailed):
        error.add_note(f"{_CODE} {error.code}")
    return error.with_traceback(None)


def own_error(error: BaseException) -> OrbitError | None:
    """The error of ours inside an exception of Spark's; None when the failure was not ours."""
    if isinstance(error, OrbitError):
        return error
    found = _OURS.search(str(error))
    if found is None:
        return None
    kind, sentence, code = found.groups()
    if kind == RequestFailed.__name__:
        return RequestFailed(int(code or 0), sentence)
    return _KINDS.get(kind, OrbitError)(sentence)


def plain_reason(error: BaseException) -> str | None:
    """Its sentence alone."""
    found = own_error(error)
    return None if found is None else str(found)
