"""What one life of a cluster came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.faults.timeline import Timeline

# Every complaint of a checker begins with one of these words.
RULES: Final = {
    "lost": "acknowledged messages lost",
    "duplicate": "messages stored twice",
    "order": "order inversions in a queue",
    "moved": "messages at another offset than acknowledged",
    "phantom": "messages that nobody sent",
    "changed": "reads of another message at an acknowledged offset",
    "stale": "reads from the master that miss an acknowledged message",
    "gap": "holes in a queue",
    "offset regress": "committed offsets that went back",
    "offset phantom": "committed offsets that nobody committed",
    "lease": "leases given twice or after their ack",
    "kind": "delays, timers and transactions against their terms",
    "half": "half messages leaked",
    "client": "acknowledged messages that the client library did not get",
    "copy": "slaves whose log or queues differ from the master's after quiet",
    "process": "processes that ended badly or printed a traceback",
}

_FIRST: Final = 5
FOUND_MEANWHILE: Final = {
    "phantom",
    "changed",
    "stale",
    "offset regress",
    "offset phantom",
    "lease",
}  # not in the end only


def rule_of(complaint: str) -> str:
    return complaint.split(":", 1)[0]


@dataclass(slots=True)
class Outcome:
    seed: int
    mode: str
    seconds: float
    timeline: Timeline
    broken: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    excused_losses: int = 0

    def by_rule(self) -> Counter[str]:
        return Counter(rule_of(complaint) for complaint in self.broken)

    def first_of_each(self) -> list[str]:
        """The first complaints under each rule."""
        by_rule: dict[str, list[str]] = {}
        for complaint in self.broken:
            by_rule.setdefault(rule_of(complaint), []).append(complaint)
        return [complaint for some in by_rule.values() for complaint in some[:_FIRST]]

    def faults(self) -> Counter[str]:
        return Counter(event.kind for event in self.timeline.events)
