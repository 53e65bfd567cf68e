"""What a broker does by itself, again and again. A slave does less: its messages are its master's."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.broker import service_times, totals
from orbitmq.broker.long_poll import BUCKET_SECONDS
from orbitmq.broker.statistics import SAMPLE_SECONDS
from orbitmq.tasks import every

if TYPE_CHECKING:
    from orbitmq.broker.opening import StartTask
    from orbitmq.broker.state import State

logger = logging.getLogger(__name__)

_CLIENT_SCAN_SECONDS: Final = 10.0
_FREE_QUEUES_SECONDS: Final = 0.1
_PROTECT_SECONDS: Final = 180.0
_FORGET_TIMERS_SECONDS: Final = 180.0
_SAVE_FILTERS_SECONDS: Final = 10.0
_CONGESTION_WATCH_SECONDS: Final = 0.1
_STALL_WATCH_SECONDS: Final = 0.1
_CLIENTS_WAIT_MS: Final = 3000  # for the answer to a send, unless they say otherwise


def start_jobs(state: State, start: StartTask) -> None:
    """What a broker does unasked."""
    settings = state.configuration.settings
    start(state.registration.run(), "registering with name servers")
    start(state.registration.follow_name_servers(), "following name servers")
    if state.copying is None:
        start(state.slaves.watch(), "watching slaves")
        start(state.delayed.run(), "delivering delayed messages")
        if state.timers is not None:
            start(state.timers.run(), "delivering timer messages")
            _save_timers(state, start)
            start(every(_FORGET_TIMERS_SECONDS, partial(_forget_timers, state), "counting timers"), "counting timers")
        start(state.half_messages.run(), "asking about open transactions")
        start(state.reviving.run(), "handing out again what nobody acknowledged")
    elif state.master_tables is not None:
        state.copying.on_cut = partial(_log_was_cut, state)
        if state.timers is not None:
            _save_timers(state, start)
        state.copying.before_copying = state.master_tables.sync
        state.copying.on_lost = state.registration.again_soon
        start(state.copying.run(), "copying the master's log")
        start(state.master_tables.run(), "copying the master's tables")
    if state.members is not None:
        seconds = settings.broker_heartbeat_interval / 1000
        start(every(seconds, state.members.say_alive, "saying that this broker is alive"), "signs of life")
    if state.acting is not None:
        start(state.acting.watch(), "watching who is alive")
        start(state.acting.run(), "acting in the master's place")
    if state.compacted is not None:
        seconds = settings.flush_interval_consume_queue / 1000
        start(every(seconds, state.compacted.sync, "saving compacted topics"), "saving compacted topics")
        seconds = settings.compaction_schedule_internal / 1000
        start(every(seconds, state.compacted.compact, "compacting topics"), "compacting topics")
    start(_watch_for_stalls(state), "watching for stalls")
    for what, seconds, action in (
        ("watching for congestion", _CONGESTION_WATCH_SECONDS, partial(_watch_congestion, state)),
        ("answering held pulls", BUCKET_SECONDS, state.pulling.held.expire),
        ("answering held pops", BUCKET_SECONDS, state.pops.expire),
        ("freeing ordered queues", _FREE_QUEUES_SECONDS, state.ordered_leases.free_due),
        ("sampling statistics", SAMPLE_SECONDS, state.statistics.sample),
        ("sampling totals", totals.SAMPLE_SECONDS, state.totals.sample),
        ("sampling service times", service_times.SAMPLE_SECONDS, state.service_times.sample),
        ("stopping slow readers", _PROTECT_SECONDS, state.progress.protect_broker),
        ("dropping silent clients", _CLIENT_SCAN_SECONDS, partial(_expire_clients, state)),
        ("cleaning the store", settings.clean_resource_interval / 1000, state.cleaning.round),
        ("saving consumer offsets", settings.flush_consumer_offset_interval / 1000, state.offsets.save),
        ("saving filters", _SAVE_FILTERS_SECONDS, state.filters.save),
        ("saving ordered leases", settings.flush_consumer_offset_interval / 1000, state.ordered_leases.save),
        ("saving delay offsets", settings.flush_delay_offset_interval / 1000, state.delayed.save),
    ):
        start(every(seconds, action, what), what)


def _save_timers(state: State, start: StartTask) -> None:
    assert state.timers is not None
    seconds = state.configuration.settings.timer_flush_interval_ms / 1000
    start(every(seconds, state.timers.save, "saving timers"), "saving timers")


def _log_was_cut(state: State, since_ms: int) -> None:
    if state.timers is not None:
        state.timers.log_was_cut(since_ms)
    if state.compacted is not None:
        state.compacted.log_was_cut()


def _forget_timers(state: State) -> None:
    assert state.timers is not None
    state.timers.counts.forget_all_but(set(state.topics.all()))


def _expire_clients(state: State) -> None:
    state.clients.expire(state.configuration.settings.channel_expired_timeout)


def _watch_congestion(state: State) -> None:
    state.refusing.look(asyncio.get_running_loop().time())


async def _watch_for_stalls(state: State) -> None:
    """When the broker stood still for longer than clients wait, what queued up meanwhile is refused: nobody waits for it."""
    loop, sending = asyncio.get_running_loop(), state.sending
    while True:
        due = loop.time() + _STALL_WATCH_SECONDS
        await asyncio.sleep(_STALL_WATCH_SECONDS)
        late_ms = round((loop.time() - due) * 1000)
        limit_ms = state.configuration.settings.os_page_cache_busy_time_out_mills + _CLIENTS_WAIT_MS
        sending.stalled_ms = late_ms if late_ms > limit_ms else 0
        if sending.stalled_ms:
            logger.warning("the broker stood still for %d ms: is the disk or the machine overloaded?", late_ms)
