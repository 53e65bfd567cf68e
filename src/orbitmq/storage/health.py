"""What keeps a store from writing, and why: shared by the threads that find out and the one that appends.

Java: RunningFlags
"""

from __future__ import annotations

import logging
from enum import IntFlag
from threading import Lock
from typing import Final

from orbitmq.errors import StorageError, StoreFenced, StoreFull
from orbitmq.storage.appended import AppendCode

logger = logging.getLogger(__name__)


class RunningFlags(IntFlag):
    """The numbers are Java's; a tool may show them."""

    NOT_READABLE = 1
    NOT_WRITABLE = 2
    QUEUE_ERROR = 4
    INDEX_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    QUEUE_DISK_FULL = 64


_REFUSES_WRITES: Final = ~RunningFlags.NOT_READABLE


class Health:
    """`refuses_writes` is a plain attribute, because every append looks at it."""

    def __init__(self) -> None:
        self.flags = RunningFlags(0)
        self.refuses_writes = False
        self._causes: dict[RunningFlags, StorageError] = {}
        self._lock = Lock()

    def report(self, flag: RunningFlags, cause: StorageError) -> None:
        """From now on; logged when it is news."""
        with self._lock:
            news = flag not in self.flags
            self._causes[flag] = cause
            self._set(self.flags | flag)
        if news:
            logger.error("the store takes no more messages: %s", cause)

    def clear(self, flag: RunningFlags) -> None:
        with self._lock:
            if flag not in self.flags:
                return
            self._causes.pop(flag, None)
            self._set(self.flags & ~flag)
            writable = not self.refuses_writes
        if writable:
            logger.info("the store takes messages again")

    @property
    def causes(self) -> dict[RunningFlags, StorageError]:
        """Why each flag is up."""
        with self._lock:
            return dict(self._causes)

    def refuse(self) -> StorageError:
        """The error for an append that is not taken: the worst cause, with a response code."""
        causes = self.causes
        cause = causes[max(causes)] if causes else StorageError("the store does not take messages now")
        kind = type(cause) if isinstance(cause, StoreFull | StoreFenced) else StorageError
        refusal = kind(cause.message, hint=cause.hint, code=AppendCode.SERVICE_NOT_AVAILABLE)
        refusal.__cause__ = cause
        return refusal

    def _set(self, flags: RunningFlags) -> None:
        self.flags = flags
        self.refuses_writes = bool(flags & _REFUSES_WRITES)
