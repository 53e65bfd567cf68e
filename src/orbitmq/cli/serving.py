"""Running a server until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

logger = logging.getLogger(__name__)

S = TypeVar("S")


async def serve(server: AbstractAsyncContextManager[S], ready: Callable[[S], str]) -> None:
    """Start it, print what `ready` says of it to stdout, and stop it at SIGINT or SIGTERM."""
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_stop.set)
    async with server as running:
        click.echo(ready(running))
        # What lives now lives for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        await asked_to_stop.wait()
        logger.info("stopping: answering what was asked, then closing")
    logger.info("stopped")
