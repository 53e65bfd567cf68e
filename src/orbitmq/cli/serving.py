"""Running a server until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
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


def warn_if_open(host: str, *, guarded: bool) -> None:
    """A server that others can reach and that asks nobody who they are is open to all of them."""
    if not guarded and not _is_loopback(host):
        logger.warning(
            "anyone who reaches %s can read, write and delete everything here; to ask them who they are, set "
            "authenticationEnabled=true, authorizationEnabled=true and initAuthenticationUser "
            "(docs/security.md); --host 127.0.0.1 keeps others out, --insecure silences this",
            host or "any address of this machine",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
