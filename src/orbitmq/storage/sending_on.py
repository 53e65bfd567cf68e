"""Sending on what has waited: the record is appended again, for the topic and queue that its properties name.

A transaction that is committed, a delay that is over, a timer that fires: the compiled loops do it without decoding the message, delays
and timers many at a time. What is unusual (other hosts, a topic that was never stored, a full log file) they leave alone, as is
everything where they are not installed: then whoever asked must look at the message and `Store.append` it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orbitmq.accelerated import compiled

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence

    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.health import Health
    from orbitmq.storage.segmented_log import SegmentedLog


class SentOn(NamedTuple):
    """A message that has waited, where it belongs."""

    topic: str
    size: int  # of the record
    born_at_ms: int


class SentTogether(NamedTuple):
    """How many messages that have waited are where they belong; of each topic, how many, and the bytes of their records."""

    messages: int = 0
    by_topic: Sequence[tuple[str, int, int]] = ()


class SendingOn:
    """Belongs to the thread that appends to the store."""

    def __init__(
        self, log: CommitLog, health: Health, now_ms: Callable[[], int], appended: Callable[[int], None]
    ) -> None:
        """`appended` hears how many records there are more."""
        self._health = health
        self._appended = appended
        copies = compiled("copies")
        self.copies: Any | None = None if copies is None else copies.Copies(log, now_ms)

    @property
    def is_compiled(self) -> bool:
        """Whether anything can be sent on here."""
        return self.copies is not None

    def commit_half(self, record: memoryview, waited_in: bytes, group: bytes, queue_offset: int) -> SentOn | None:
        """Append a half message of the topic `waited_in` again, committed. It must be of this group of producers, and ask for no delay.

        None: nothing was done.
        """
        if self.copies is None or self._health.refuses_writes:
            return None
        found = self.copies.commit(record, waited_in, group, queue_offset)
        if found is None:
            return None
        self._appended(1)
        return SentOn(*found)

    def delayed(
        self, entries: bytes, waited_in: bytes, now_ms: int, progress: memoryview | None, number: int
    ) -> SentTogether:
        """What these entries of a delay level lead to, up to the first whose time has not come, or that is unusual.

        `number` is noted in the eight bytes of `progress`, and is one more with each.
        """
        if self.copies is None or self._health.refuses_writes:
            return SentTogether()
        return self._sent(self.copies.send_on_delayed(entries, waited_in, now_ms, progress, number))

    def timers(
        self,
        positions: array[int],
        first: int,
        stop: int,
        units: SegmentedLog,
        waited_in: bytes,
        precision_ms: int,
        progress: memoryview | None,
    ) -> SentTogether:
        """What timer units lead to, from number `first` of `positions` to before `stop`, or the first that is unusual.

        How many of `positions` are done is noted with each in the four bytes of `progress`.
        """
        if self.copies is None or self._health.refuses_writes:
            return SentTogether()
        return self._sent(self.copies.send_on_timers(positions, first, stop, units, waited_in, precision_ms, progress))

    def _sent(self, together: tuple[int, Sequence[tuple[str, int, int]]]) -> SentTogether:
        sent = SentTogether(*together)
        if sent.messages:
            self._appended(sent.messages)
        return sent
