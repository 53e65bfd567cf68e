"""The long lists of tags that held pulls wait for: those of a client that are equal are kept once, and so many in all.

As hashes in a set, ten thousand tags take 800 KB, and a client may have thousands of pulls waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

MOST_PER_CONNECTION: Final = 200_000  # tags: 16 MB
_FEW: Final = 32  # take about as much as the rest of a held pull


class _OfClient:
    __slots__ = ("pulls", "shared", "tags")

    def __init__(self) -> None:
        self.shared: dict[frozenset[int], frozenset[int]] = {}  # each under itself: found by one that is equal
        self.pulls: dict[frozenset[int], int] = {}  # how many wait for it
        self.tags = 0  # in all of them


class HeldTags:
    def __init__(self) -> None:
        self._by_connection: dict[Connection, _OfClient] = {}

    @property
    def is_empty(self) -> bool:
        return not self._by_connection

    def has_room(self, connection: Connection, tags: frozenset[int] | None) -> bool:
        if tags is None or len(tags) <= _FEW:
            return True
        client = self._by_connection.get(connection)
        return client is None or tags in client.shared or client.tags + len(tags) <= MOST_PER_CONNECTION

    def keep(self, connection: Connection, tags: frozenset[int]) -> frozenset[int]:
        """For one more pull, which is to hold what this returns."""
        if len(tags) <= _FEW:
            return tags
        client = self._by_connection.setdefault(connection, _OfClient())
        if tags not in client.shared:
            client.shared[tags] = tags
            client.pulls[tags] = 0
            client.tags += len(tags)
        client.pulls[tags] += 1
        return client.shared[tags]

    def drop(self, connection: Connection, tags: frozenset[int]) -> None:
        """One pull less."""
        if len(tags) <= _FEW:
            return
        client = self._by_connection[connection]
        client.pulls[tags] -= 1
        if not client.pulls[tags]:
            del client.pulls[tags], client.shared[tags]
            client.tags -= len(tags)
            if not client.pulls:
                del self._by_connection[connection]
