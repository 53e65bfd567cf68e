"""What fails on the thread of a test server is heard by the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.testing.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def server(*, opens: bool = True, closes: bool = True) -> AsyncIterator[None]:
    if not opens:
        raise ZeroDivisionError("cannot open")
    yield
    if not closes:
        raise ZeroDivisionError("cannot close")


def fail() -> None:
    raise ZeroDivisionError("cannot do it")


def test_what_a_called_function_raises_is_raised_to_the_caller_and_the_server_goes_on() -> None:
    thread, done = LoopThread("a server"), list[str]()
    thread.start(server())
    with pytest.raises(ZeroDivisionError, match="cannot do it"):
        thread.called(fail)
    thread.called(lambda: done.append("next"))
    thread.stop()
    assert done == ["next"]


def test_a_server_that_fails_when_it_closes_says_so_once() -> None:
    thread = LoopThread("a server")
    thread.start(server(closes=False))
    with pytest.raises(ZeroDivisionError, match="cannot close"):
        thread.stop()
    thread.stop()


def test_a_server_that_does_not_open_says_so_once() -> None:
    thread = LoopThread("a server")
    with pytest.raises(ZeroDivisionError, match="cannot open"):
        thread.start(server(opens=False))
    thread.stop()
