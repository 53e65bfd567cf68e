"""Sharing the queues of a topic among the members of a group. Whoever computes it must come to Java's result exactly.

Java: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.message.message import QueueRef


def averagely(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
    """One block each, the first members taking one more when it does not divide. Java: AllocateMessageQueueAveragely"""
    share, rest = divmod(len(queues), len(members))
    index = members.index(me)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def in_a_circle(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
    """Dealt out like cards. Java: AllocateMessageQueueAveragelyByCircle"""
    return list(queues[members.index(me) :: len(members)])
