"""Which queues the program wants no pulls from. It holds for queues that come, and for those that go and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.message import QueueRef


class Pauses:
    """All or none, but for exceptions. Queues are under the names that the program knows."""

    def __init__(self) -> None:
        self._all = False
        self._exceptions: set[QueueRef] = set()

    def __contains__(self, queue: QueueRef) -> bool:
        return self._all != (queue in self._exceptions)

    def put(self, queues: Iterable[QueueRef] | None, *, paused: bool) -> None:
        """From here on these are paused, or are not; None: all, also those that come."""
        if queues is None:
            self._all = paused
            self._exceptions.clear()
        elif paused == self._all:
            self._exceptions.difference_update(queues)
        else:
            self._exceptions.update(queues)
