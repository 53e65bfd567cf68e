"""The client library among the others, through the name servers: what it sent and was acknowledged, its consumers receive."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import orbitmq as mq
from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.losses import Losses
    from tests.faults.timeline import Timeline

TOPIC: Final = "Library"


class Place(NamedTuple):
    queue_id: int
    offset: int


class Sent(NamedTuple):
    acked_at: float
    place: Place


@dataclass(slots=True)
class LibraryLedger:
    losses: Losses
    sent: dict[str, Sent] = field(default_factory=dict)  # acknowledged
    received: set[str] = field(default_factory=set)
    read_at: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))

    def note_received(self, name: str, place: Place) -> None:
        self.received.add(name)
        self.read_at[place].add(name)

    def missing(self) -> list[str]:
        """What must have come and has not."""
        return [name for name in self._not_received() if not self._is_excused(name)]

    def excused(self) -> list[str]:
        return [name for name in self._not_received() if self._is_excused(name)]

    def _not_received(self) -> list[str]:
        return [name for name in self.sent if name not in self.received]

    def _is_excused(self, name: str) -> bool:
        """Lost within what the mode says; or it has the number of a message that was read and lost, and was passed over."""
        sent = self.sent[name]
        return self.losses.may_include(sent.acked_at) or bool(self.read_at.get(sent.place, set()) - {name})


class LibraryClients:
    def __init__(
        self, name_servers: Callable[[], str], ledger: LibraryLedger, timeline: Timeline, pause_seconds: float
    ) -> None:
        self.over = False
        self._name_servers = name_servers
        self._ledger = ledger
        self._timeline = timeline
        self._pause_seconds = pause_seconds

    def senders(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._send())]

    def consumers(self) -> list[asyncio.Task[None]]:
        """They go on after `over`: cancel them."""
        return [asyncio.create_task(self._receive())]

    async def _send(self) -> None:
        async with (
            mq.connect(self._name_servers()) as client,
            client.producer(group="library", timeout=3.0) as producer,
        ):
            number = 0
            while not self.over:
                number += 1
                name = f"library-{number}"
                with contextlib.suppress(OrbitError, OSError):
                    receipt = await producer.send(TOPIC, name.encode())
                    if receipt.status is mq.SendStatus.STORED:
                        place = Place(receipt.queue.queue_id, receipt.queue_offset)
                        self._ledger.sent[name] = Sent(self._timeline.now(), place)
                await asyncio.sleep(self._pause_seconds)

    async def _receive(self) -> None:
        async with (
            mq.connect(self._name_servers()) as client,
            client.consumer(TOPIC, group="library-readers", start="earliest") as consumer,
        ):
            async for message in consumer:
                async with message.process():
                    place = Place(message.queue.queue_id, message.queue_offset)
                    self._ledger.note_received(message.body.decode(), place)
