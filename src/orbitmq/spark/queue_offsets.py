"""Positions in queues, as programs hold them and as JSON: in options, in a checkpoint, in a query's progress.

    {"Orders": {"broker-a": {"0": 23, "1": -1}}}      topic, broker, queue: offset; -1 is the latest, -2 the earliest
    {"Orders": {"broker-a": [0, 1]}}                  queues alone, for `assign`

The form is rocketmq-spark's, so offsets of old jobs can be given as they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef
from orbitmq.spark.options import moment_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Offsets = dict[QueueRef, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]

LATEST: Final = -1
EARLIEST: Final = -2

_OFFSETS_FORM: Final = '{"topicA":{"broker-a":{"0":23,"1":-1}}}, where -1 is the latest and -2 the earliest'
_QUEUES_FORM: Final = '{"topicA":{"broker-a":[0,1]}}'


def to_json(offsets: Mapping[QueueRef, int]) -> OffsetsJson:
    """In the order of the queues, so that equal offsets are equal texts."""
    found: OffsetsJson = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(value: Mapping[str, Any]) -> Offsets:
    """What `to_json` made: no checks, it comes from a checkpoint of ours."""
    return {
        QueueRef(topic, broker_name, int(queue_id)): offset
        for topic, brokers in value.items()
        for broker_name, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def from_progress(text: str | None) -> Offsets | None:
    """The offsets in a query's progress; None when they are of another source, which Spark does not name there."""
    value = json.loads(text) if text else None
    if not isinstance(value, dict) or not value:
        return None
    for brokers in value.values():
        if not isinstance(brokers, dict) or not all(isinstance(queues, dict) for queues in brokers.values()):
            return None
        for queues in brokers.values():
            if not all(queue_id.isdecimal() and type(offset) is int for queue_id, offset in queues.items()):
                return None
    return from_json(value)


def parse_offsets(text: str, option: str) -> Offsets:
    """What a user wrote."""
    offsets = {}
    for queue, value in _leaves(text, option, _OFFSETS_FORM):
        if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
            raise _not_in_form(option, text, _OFFSETS_FORM)
        offsets[queue] = value
    return offsets


def parse_moments(text: str, option: str) -> Offsets:
    """Times for queues, in milliseconds or ISO 8601."""
    form = '{"topicA":{"broker-a":{"0":1767225600000,"1":"2026-01-01T00:00:00Z"}}}'
    moments = {}
    for queue, value in _leaves(text, option, form):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise _not_in_form(option, text, form)
        moments[queue] = moment_ms(str(value), option)
    return moments


def parse_queues(text: str, option: str) -> list[QueueRef]:
    value = _loaded(text, option, _QUEUES_FORM)
    queues: list[QueueRef] = []
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise _not_in_form(option, text, _QUEUES_FORM)
        for broker_name, queue_ids in brokers.items():
            if not isinstance(queue_ids, list) or not all(type(queue_id) is int for queue_id in queue_ids):
                raise _not_in_form(option, text, _QUEUES_FORM)
            queues += [QueueRef(topic, broker_name, queue_id) for queue_id in queue_ids]
    if not queues:
        raise ConfigError(f"option {option} names no queue", hint=f"write {_QUEUES_FORM}")
    return sorted(set(queues))


def named(queue: QueueRef) -> str:
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"


def listed(queues: Iterable[QueueRef], at_most: int = 5) -> str:
    names = [named(queue) for queue in sorted(queues)]
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def _leaves(text: str, option: str, form: str) -> Iterable[tuple[QueueRef, Any]]:
    for topic, brokers in _loaded(text, option, form).items():
        if not isinstance(brokers, dict):
            raise _not_in_form(option, text, form)
        for broker_name, queues in brokers.items():
            if not isinstance(queues, dict) or not all(queue_id.isdecimal() for queue_id in queues):
                raise _not_in_form(option, text, form)
            for queue_id, value in queues.items():
                yield QueueRef(topic, broker_name, int(queue_id)), value


def _loaded(text: str, option: str, form: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _not_in_form(option, text, form) from None
    if not isinstance(value, dict):
        raise _not_in_form(option, text, form)
    return value


def _not_in_form(option: str, text: str, form: str) -> ConfigError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return ConfigError(f"option {option} is {shown!r}", hint=f"write {form}")
