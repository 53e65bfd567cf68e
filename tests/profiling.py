"""Counting calls, so that the count is the same wherever and whenever it is made."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextmanager
def profiled(note: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """`note` hears of every call. Garbage is not collected meanwhile: whoever listens to that, as Hypothesis does, would be counted."""
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


@dataclass(slots=True)
class Calls:
    count: int = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Of Python and C functions."""
    calls = Calls()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        calls.count += event in ("call", "c_call")

    with profiled(note):
        yield calls
