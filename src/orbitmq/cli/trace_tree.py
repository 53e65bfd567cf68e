"""The life of a message, drawn as a tree."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from orbitmq.cli.view import local_time, printable

if TYPE_CHECKING:
    from orbitmq.admin.traces import MessageTrace, TraceEvent

_WIDTH = 200
_SHOWN = {"sent": "sent", "transaction": "transaction", "recalled": "recalled"}


def tree_text(trace: MessageTrace) -> str:
    message = trace.message
    tree = Tree(_plain(f"message {message.id}"))
    tree.add(_plain(f"born {local_time(message.born_at)} at {message.born_host}"))
    for event in trace.events:
        if event.kind in _SHOWN:
            tree.add(_plain(f"{event.kind} by {event.group} from {event.client}: {event.outcome}{_cost(event)}"))
    labels = "".join(
        f", {name} {text}" for name, text in (("tag", message.tag), ("keys", " ".join(message.keys))) if text
    )
    place = f"{message.topic} on {message.broker}, queue {message.queue}, offset {message.offset}"
    stored = tree.add(_plain(f"stored {local_time(message.stored_at)} in {place}{labels}"))
    deliveries: dict[str, list[TraceEvent]] = {state.group: [] for state in trace.groups}
    for event in trace.events:
        if event.kind == "consumed":
            deliveries.setdefault(event.group, []).append(event)
    states = {state.group: state for state in trace.groups}
    for group, events in deliveries.items():
        state = states.get(group)
        words = f": {state.state}, {'online' if state.online else 'offline'}" if state is not None else ""
        branch = stored.add(_plain(f"group {group}{words}"))
        for event in events:
            when = f" {local_time(event.at)}" if event.at is not None else ""
            branch.add(_plain(f"attempt {event.attempt}{when} on {event.client}: {event.outcome}{_cost(event)}"))
    if not deliveries:
        stored.add("no group reads this topic")
    text = io.StringIO()
    Console(file=text, width=_WIDTH, color_system=None).print(tree)
    lines = "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())
    if not trace.events:
        lines += "\nno traces: the clients tell none, or the broker has traceTopicEnable=false\n"
    return lines


def _plain(text: str) -> Text:
    """Names come from the network: they carry no markup."""
    return Text(printable(text))


def _cost(event: TraceEvent) -> str:
    return f", {event.cost_ms} ms" if event.cost_ms is not None else ""
