"""What `msg find` does: look for messages by key, or read through the queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbitmq.admin.messages import TopicReader, Window, messages_by_key
from orbitmq.client.filters import Sql, subscription

if TYPE_CHECKING:
    from orbitmq.admin.messages import MessageRow
    from orbitmq.admin.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which messages of a topic are wanted, and how many are enough."""

    topic: str
    key: str | None
    begin_ms: int | None
    end_ms: int | None
    queue: tuple[str, int] | None
    tags: str | None
    sql: str | None
    grep: str | None
    most: int

    async def run(self, session: Session) -> list[MessageRow]:
        """The oldest first."""
        if self.key is None:
            wanted = Sql(self.sql) if self.sql is not None else self.tags
            window = Window(begin_ms=self.begin_ms, end_ms=self.end_ms, queue=self.queue, filter=wanted)
            return await TopicReader(session).oldest(self.topic, window, self.most, self._has_text)
        rows = await messages_by_key(
            session, self.topic, self.key, limit=self.most, begin_ms=self.begin_ms, end_ms=self.end_ms
        )
        tags = subscription(self.topic, self.tags, 0).tags  # the key index knows no tags: they are compared here
        return [
            row
            for row in reversed(rows)
            if self._has_text(row)
            and (self.queue is None or self.queue == (row.broker, row.queue))
            and (not tags or row.tag in tags)
        ]

    def _has_text(self, row: MessageRow) -> bool:
        return self.grep is None or self.grep in row.body
