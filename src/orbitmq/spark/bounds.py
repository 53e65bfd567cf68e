"""From what a user said about the start and the end of a read to an offset in every queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.client import questions
from orbitmq.client.filters import subscription
from orbitmq.errors import ConfigError
from orbitmq.message.record import stored_at_ms
from orbitmq.spark.discovery import Extent, each
from orbitmq.spark.pulling import pull_once
from orbitmq.spark.queue_offsets import EARLIEST, LATEST, Offsets, listed, named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.client.cluster import Cluster
    from orbitmq.message import QueueRef
    from orbitmq.spark.source_options import Bound, SourceOptions

logger = logging.getLogger(__name__)


async def starting_offsets(cluster: Cluster, options: SourceOptions, extents: Mapping[QueueRef, Extent]) -> Offsets:
    bound = options.starting
    if bound.anchor == "earliest":
        return {queue: extent.low for queue, extent in extents.items()}
    if bound.anchor == "latest":
        return {queue: extent.high for queue, extent in extents.items()}
    if bound.anchor == "group":
        return await _of_group(cluster, options, extents)
    if bound.anchor == "time":
        return await _by_time(cluster, options, bound, extents, otherwise=EARLIEST)
    return _given(options, bound, extents, "startingOffsets", otherwise=EARLIEST)


async def ending_offsets(cluster: Cluster, options: SourceOptions, extents: Mapping[QueueRef, Extent]) -> Offsets:
    bound = options.ending
    if bound.anchor == "time":
        return await _by_time(cluster, options, bound, extents, otherwise=LATEST)
    if bound.anchor == "offsets":
        return _given(options, bound, extents, "endingOffsets", otherwise=LATEST)
    return {queue: extent.high for queue, extent in extents.items()}


def _given(
    options: SourceOptions, bound: Bound, extents: Mapping[QueueRef, Extent], option: str, otherwise: int
) -> Offsets:
    _check_named(bound.offsets, extents, option)
    offsets = {}
    for queue, extent in extents.items():
        offset = bound.offsets.get(queue, otherwise)
        if offset == EARLIEST:
            offset = extent.low
        elif offset == LATEST:
            offset = extent.high
        offsets[queue] = within(options, queue, offset, extent, option)
    return offsets


async def _of_group(cluster: Cluster, options: SourceOptions, extents: Mapping[QueueRef, Extent]) -> Offsets:
    committed = await each(list(extents), lambda queue: questions.committed_offset(cluster, options.group, queue))
    new = [queue for queue, offset in committed.items() if offset is None]
    if new and options.new_group == "error":
        raise ConfigError(
            f"group {options.group} has committed no offset for {listed(new)}",
            hint="newGroupOffsets=earliest or latest says where to begin there",
        )
    offsets = {}
    for queue, extent in extents.items():
        offset = committed[queue]
        if offset is None:
            offset = extent.high if options.new_group == "latest" else extent.low
        offsets[queue] = within(options, queue, offset, extent, f"group {options.group}")
    return offsets


async def _by_time(
    cluster: Cluster, options: SourceOptions, bound: Bound, extents: Mapping[QueueRef, Extent], otherwise: int
) -> Offsets:
    _check_named(bound.times, extents, "the option by timestamp")
    times = {queue: bound.times.get(queue, bound.time_ms) for queue in extents}
    timed = [queue for queue in extents if times[queue] is not None]
    found = await each(timed, lambda queue: first_at(cluster, options, queue, times[queue] or 0, extents[queue]))
    none = [queue for queue in timed if found[queue] is None and extents[queue].high > extents[queue].low]
    if none and bound.when_none == "error":
        raise ConfigError(
            f"no message was stored at the starting time or later in {listed(none)}",
            hint="startingOffsetsByTimestampStrategy=latest begins there with what comes",
        )
    offsets = {}
    for queue, extent in extents.items():
        offset = found.get(queue, extent.low if otherwise == EARLIEST else extent.high)
        offsets[queue] = extent.high if offset is None else offset
    return offsets


async def first_at(
    cluster: Cluster, options: SourceOptions, queue: QueueRef, time_ms: int, extent: Extent
) -> int | None:
    """The first message stored at this time or later; None when there is none.

    What the broker answers is where to look: 4.9.7 names the message whose time is nearest, others that before the end.
    """
    if extent.high <= extent.low:
        return None
    hint = min(max(await questions.offset_at(cluster, queue, time_ms), extent.low), extent.high - 1)
    everything = subscription(queue.topic, None, 0)

    async def is_due(offset: int) -> bool:
        pulled = await pull_once(cluster, options, everything, queue, offset, 1)
        # Of a message that is not there any more the broker's word counts.
        return stored_at_ms(pulled.body) >= time_ms if pulled.body else offset >= hint

    # All before `low` are too early, `high` is not; the step doubles until the other one is found, too.
    low, high, step = extent.low, extent.high, 1
    if await is_due(hint):
        high = hint
        while low < high and await is_due(probe := max(high - step, low)):
            high, step = probe, step * 2
        low = max(high - step + 1, low)
    else:
        low = hint + 1
        while low < high and not await is_due(probe := min(low + step - 1, high - 1)):
            low, step = probe + 1, step * 2
        high = min(low + step - 1, high)
    while low < high:
        middle = (low + high) // 2
        if await is_due(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < extent.high else None


def within(options: SourceOptions, queue: QueueRef, offset: int, extent: Extent, said_by: str) -> int:
    """The offset, if the queue has it; else the nearest one it has, or an error, as failOnDataLoss says.

    What a slave has not, its master may have: there the offset stays, and what is behind it is read when it is there.
    """
    if extent.low <= offset <= extent.high or not extent.is_whole:
        return offset
    what = f"{said_by} says {offset} for {named(queue)}, which holds {extent.low} to {extent.high}"
    if options.fail_on_data_loss:
        raise ConfigError(what, hint="give an offset in that range, or failOnDataLoss=false to take the nearest")
    nearest = min(max(offset, extent.low), extent.high)
    logger.warning("%s; going on at %d", what, nearest)
    return nearest


async def resumed(
    cluster: Cluster, options: SourceOptions, queue: QueueRef, offset: int, extent: Extent, since_ms: int
) -> int:
    """Where an archive goes on that was at `offset` at `since_ms`: as `within`. But a queue that ends before was made anew, or cut short by
    a crash: there the archive has got none of what was stored since."""
    nearest = within(options, queue, offset, extent, "the archive")
    if offset <= extent.high or nearest == offset:
        return nearest
    found = await first_at(cluster, options, queue, since_ms, extent)
    if found is None:
        return nearest
    logger.warning("%s goes on at %d: there begins what was stored since the last batch", named(queue), found)
    return found


def _check_named(given: Mapping[QueueRef, int], extents: Mapping[QueueRef, Extent], option: str) -> None:
    unknown = [queue for queue in given if queue not in extents]
    if unknown:
        raise ConfigError(
            f"{option} names what is not read: {listed(unknown)}", hint=f"the queues are {listed(extents)}"
        )
