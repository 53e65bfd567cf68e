"""Running a server until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from orbitmq.configuration import Configuration

logger = logging.getLogger(__name__)

S = TypeVar("S")

ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_PARENT_SECONDS: Final = 0.5


async def serve(
    server: AbstractAsyncContextManager[S], ready: Callable[[S], str], *, ends_with_parent: bool = False
) -> None:
    """Start it, print what `ready` says of it to stdout, and stop it at SIGINT or SIGTERM.

    With `ends_with_parent`, also when the process that started this one is gone, however it went.
    """
    asked_to_stop = asyncio.Event()
    watching = asyncio.create_task(_watch_parent(asked_to_stop)) if ends_with_parent else None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_stop.set)
    async with server as running:
        click.echo(ready(running))
        # What lives now lives for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        await asked_to_stop.wait()
        logger.info("stopping: answering what was asked, then closing")
        if watching is not None:
            watching.cancel()
    logger.info("stopped")


async def _watch_parent(gone: asyncio.Event) -> None:
    parent = os.getppid()
    while True:
        await asyncio.sleep(_PARENT_SECONDS)
        if os.getppid() != parent:
            gone.set()
            return


def warn_of_settings(configuration: Configuration[Any], server: str) -> None:
    """What its file says that no such server knows, or that is not used as it stands there."""
    for sentence in (*configuration.unknown_told(server), *configuration.adjusted):
        logger.warning("%s", sentence)


def warn_if_open(host: str, *, guarded: bool) -> None:
    """A server that others can reach and that asks nobody who they are is open to all of them."""
    if not guarded and not is_loopback(host):
        logger.warning(
            "anyone who reaches %s can read, write and delete everything here; to ask them who they are, set "
            "authenticationEnabled=true, authorizationEnabled=true and initAuthenticationUser "
            "(docs/security.md); --host 127.0.0.1 keeps others out, --insecure silences this",
            host or "any address of this machine",
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
