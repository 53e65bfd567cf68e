"""A coroutine that was stepped once by hand, as `Connection` does with every handler, and turned out to wait."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Go on with it: wait for what it waits for, then hand over to it."""
    while True:
        try:
            sent = yield waiting_for
        except BaseException as error:
            try:
                waiting_for = coroutine.throw(error)
            except StopIteration as finished:
                return cast("T", finished.value)
        else:
            try:
                waiting_for = coroutine.send(sent)
            except StopIteration as finished:
                return cast("T", finished.value)
