"""What was asked of the cluster and what it answered, kept outside of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

LONG = "~"  # the end of a name whose body is several blocks of a disk long, so that a power cut may take one out of its middle
_LONGEST_BYTES = 700
_LONGEST_OF_LONG = 4000


class Place(NamedTuple):
    topic: str
    queue_id: int
    offset: int


@dataclass(slots=True)
class Sent:
    name: str
    topic: str
    kind: str  # plain, delayed, timer, transaction
    lane: str  # who sends one after the other
    attempts: int = 0  # requests that may have been made, at most
    acked_at: float | None = None
    place: Place | None = None  # of the acknowledged copy; a delayed one has another in the end
    decision: bool | None = None  # of a transaction, once it is taken; None: not taken, so nobody may see it
    delay_seconds: float = 0.0
    first_asked_ms: int = 0  # by the broker's clock


class Received(NamedTuple):
    name: str
    place: Place
    at: float
    consumer: str


class GivenBack(NamedTuple):
    """A message that a consumer wanted again; it is done with the place it came from."""

    place: Place
    at: float


class Fault(NamedTuple):
    at: float
    what: str
    machine: str


@dataclass(slots=True)
class Ledger:
    sent: dict[str, Sent] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    received_names: set[str] = field(default_factory=set)
    given_back: dict[str, GivenBack] = field(default_factory=dict)  # by name
    faults: list[Fault] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # what no fault excuses, found while it happened

    def take(self, received: Received) -> None:
        self.received.append(received)
        self.received_names.add(received.name)


def body_of(name: str) -> bytes:
    """The name, and bytes that follow from it: a body that was mixed up with another shows."""
    number = zlib.crc32(name.encode())
    longest = _LONGEST_OF_LONG if name.endswith(LONG) else _LONGEST_BYTES
    return f"{name}|".encode() + bytes([number & 0xFF]) * (number % longest)


def name_in(body: bytes) -> str | None:
    """None: nobody ever sent this."""
    name = body.partition(b"|")[0].decode("ascii", "replace")
    return name if body_of(name) == body else None
