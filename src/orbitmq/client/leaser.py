"""A lease consumer as brokers and tools know it: its place in the group, what it has on lease, how fast it works.

On lease is what was handed to it, is not acked, and whose lease is not over. Times are the event loop's.

Java: PopProcessQueue, ConsumerData
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.client.figures import Figures
from orbitmq.protocol.bodies.groups import ConsumerData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.client.filters import Subscription
    from orbitmq.protocol.lease_texts import Handle

_Place = tuple[str, str, int, int]  # broker, kind of topic, queue, offset: the same whatever the lease


class Leaser:
    """One member of a group that leases."""

    def __init__(
        self,
        group: str,
        subscription: Subscription,
        *,
        from_first: bool,
        orderly: bool,
        prefetch: int,
        lease_ms: int,
        started_at_ms: int,
        now: float,
    ) -> None:
        self.group = group
        self.subscriptions = {subscription.topic: subscription}
        self.orderly = orderly
        self.prefetch = prefetch
        self.lease_ms = lease_ms
        self.started_at_ms = started_at_ms
        self.figures = Figures(now)
        self.polled_at: dict[str, float] = {}  # broker name -> when it last answered
        self._from_first = from_first
        self._speed = self.figures.of(subscription.topic)
        self._ends_at: dict[_Place, float] = {}

    def polled(self, broker_name: str, began: float, now: float, count: int) -> None:
        """A poll of this broker brought so many messages."""
        self.polled_at[broker_name] = now
        self._forget_ended(now)
        if count:
            self._speed.found(now - began, count)

    def leased(self, handle: Handle, ends_at: float) -> None:
        """A message is ours until then: it just came, or its lease was changed."""
        self._ends_at[_place(handle)] = ends_at

    def settled(self, handles: Sequence[Handle]) -> None:
        self._speed.handled(0.0, len(handles), 0)
        for handle in handles:
            self._ends_at.pop(_place(handle), None)

    def on_lease(self, now: float) -> dict[str, int]:
        """Broker name -> messages, of all brokers that were ever polled."""
        self._forget_ended(now)
        counts = dict.fromkeys(self.polled_at, 0)
        for broker_name, *_ in self._ends_at:
            counts[broker_name] = counts.get(broker_name, 0) + 1
        return counts

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_POP",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET" if self._from_first else "CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[one.body() for one in self.subscriptions.values()],
        )

    def _forget_ended(self, now: float) -> None:
        for place in [place for place, ends_at in self._ends_at.items() if ends_at <= now]:
            del self._ends_at[place]


def _place(handle: Handle) -> _Place:
    return handle.broker_name, handle.kind, handle.queue_id, handle.offset
