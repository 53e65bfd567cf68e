"""Every asynchronous test of this room runs twice: on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Any] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
    return factories
