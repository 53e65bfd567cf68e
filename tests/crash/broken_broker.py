"""A broker that breaks promises, to see that the ledger notices: `python -m tests.crash.broken_broker early_timers,... broker ...`."""

from __future__ import annotations

import sys
from typing import Any

from orbitmq.broker import half_messages, sending
from orbitmq.broker.sending import Sending
from orbitmq.broker.timer_requests import Place
from orbitmq.broker.timers import Timers
from orbitmq.cli.entry import main
from orbitmq.storage.timer_wheel import NOWHERE, SLOTS


def early_timers() -> None:
    """Timer messages are delivered at once."""
    vars(sending)["park_timer"] = lambda *_arguments: None


def forgotten_timers() -> None:
    """What is on the wheel is forgotten with the process."""
    init = Timers.__init__

    def forget(self: Timers, wheel: Any, *rest: Any) -> None:
        init(self, wheel, *rest)
        for slot in list(wheel.wheel.used(wheel.read_tick, wheel.read_tick + SLOTS)):
            wheel.wheel.clear(slot.tick)
        wheel.last_tick = NOWHERE
        wheel.queue_offset = rest[1].queue_range("rmq_sys_wheel_timer", 0).max_offset

    setattr(Timers, "__init__", forget)  # noqa: B010 - a type checker would have it otherwise


def visible_halves() -> None:
    """Half messages are stored where consumers see them."""
    put = Sending.put

    def reveal(self: Sending, topic: str, queue_id: int, body: bytes, properties: str, *rest: Any) -> Any:
        born_at_ms, born_host, *_ = rest
        return put(self, topic, queue_id, body, properties.replace("TRAN_MSG", "HALF"), born_at_ms, born_host)

    setattr(Sending, "put", reveal)  # noqa: B010


def commits_twice() -> None:
    """A decision does not end a transaction, and is carried out twice."""
    publish = half_messages.HalfMessages._publish

    def twice(self: half_messages.HalfMessages, half: Any) -> None:
        publish(self, half)
        publish(self, half)

    half_messages.HalfMessages._publish = twice  # type: ignore[method-assign]


def acks_without_storing() -> None:
    """Every tenth delayed message is acknowledged and thrown away."""
    parked, count = Sending.parked, 0

    def lose(self: Sending, topic: str, queue_id: int, properties: str, parsed: dict[str, str]) -> Place | None:
        nonlocal count
        count += topic == "Delayed"
        if topic == "Delayed" and count % 10 == 0:
            return Place("Nowhere", 0, "")
        return parked(self, topic, queue_id, properties, parsed)

    Sending.parked = lose  # type: ignore[method-assign]


VARIANTS = {
    f.__name__: f for f in (early_timers, forgotten_timers, visible_halves, commits_twice, acks_without_storing)
}

if __name__ == "__main__":
    for variant in sys.argv.pop(1).split(","):
        VARIANTS[variant]()
    main()
