"""What GET_BROKER_RUNTIME_INFO answers: some sixty texts under the names that mqadmin and the dashboard read.

Requests are answered by one event loop, without queues between threads, so sizes and waiting times of Apache's thread pools
are 0 here; their capacities are the configured ones. How long puts took is measured from request to answer (service_times.py).

Java: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.getRuntimeInfo
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import statistics
from orbitmq.protocol import versions

if TYPE_CHECKING:
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.service_times import ServiceTimes
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.totals import Totals
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
_PUT_TIMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_NO_POOL: Final = 2**31 - 1  # Java's Integer.MAX_VALUE: a write pool that is not used is never exhausted
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def runtime_info(
    stats: Statistics,
    totals: Totals,
    service_times: ServiceTimes,
    delayed: DelayedMessages,
    timers: Timers | None,
    configuration: BrokerConfiguration,
    clock: Clock,
) -> dict[str, str]:
    """All but what `store_info` says."""
    shown = configuration.as_properties()
    table = {
        "brokerActive": "true",
        "brokerVersion": str(versions.OURS),
        "brokerVersionDesc": versions.name(versions.OURS),
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration((clock.now_ms() - stats.started_ms) // 1000),
        "startAcceptSendRequestTimeStamp": shown["startAcceptSendRequestTimeStamp"],
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": shown["endTransactionPoolQueueCapacity"],
    }
    for pool in _POOLS:
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = shown[f"{pool}ThreadPoolQueueCapacity"]
    for level, (delivered_to, end) in delayed.progress().items():
        table[f"scheduleMessageOffset_{level}"] = f"{delivered_to},{end}"
    if timers is not None:
        table["timerReadBehind"] = str(timers.read_behind_ms // 1000)
        table["timerOffsetBehind"] = str(timers.queue_behind)
        table["timerCongestNum"] = str(timers.counts.total())
        table["timerEnqueueTps"] = str(_rate(stats, statistics.TIMER_ENQUEUE_NUMS))
        table["timerDequeueTps"] = str(_rate(stats, statistics.TIMER_DEQUEUE_NUMS))
    return {**table, **_traffic(stats, totals), **_speed(service_times)}


def _rate(stats: Statistics, name: str) -> float:
    return sum((counter.minute().per_second for _, counter in stats.counters(name)), 0.0)


def _traffic(stats: Statistics, totals: Totals) -> dict[str, str]:
    now, morning, yesterday = totals.now(), totals.this_morning, totals.yesterday_morning
    rates = totals.rates()
    puts, found, missed, transferred = ([str(rate[i]) if rate else "" for rate in rates] for i in range(4))
    size = stats.total(statistics.TOPIC_PUT_SIZE)
    count = totals.all_puts or 1  # Java's way around dividing by it
    return {
        "msgPutTotalYesterdayMorning": str(yesterday.put),
        "msgPutTotalTodayMorning": str(morning.put),
        "msgPutTotalTodayNow": str(now.put),
        "msgGetTotalYesterdayMorning": str(yesterday.transferred),
        "msgGetTotalTodayMorning": str(morning.transferred),
        "msgGetTotalTodayNow": str(now.transferred),
        "putTps": " ".join(puts),
        "getFoundTps": " ".join(found),
        "getMissTps": " ".join(missed),
        "getTotalTps": " ".join(str(rate[1] + rate[2] if rate else 0.0) for rate in rates),
        "getTransferredTps": " ".join(transferred),
        "putMessageTimesTotal": str(count),
        "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / count),
    }


def _speed(times: ServiceTimes) -> dict[str, str]:
    puts = zip(_PUT_TIMES, times.put_spread(), strict=True)
    return {
        "putMessageDistributeTime": "".join(f"{name}:{count} " for name, count in puts),
        "putMessageEntireTimeMax": str(times.longest_put_ms),
        "getMessageEntireTimeMax": str(times.longest_get_ms),
        "putLatency99": f"{times.put_percentile_ms(0.99):.2f}",
        "putLatency999": f"{times.put_percentile_ms(0.999):.2f}",
    }


def store_info(store: Store) -> dict[str, str]:
    """Looks at the disk, so it is for a thread."""
    config = store.config
    log_ratio = store.disk.used_percent(config.commit_log_path) / 100
    earliest_ms = store.earliest_stored_at_ms()
    room = store.disk.room(config.directory)
    table = {
        "commitLogMinOffset": str(store.log.start),
        "commitLogMaxOffset": str(store.log.end),
        "commitLogDiskRatio": str(log_ratio),
        f"commitLogDiskRatio_{config.commit_log_path}": str(log_ratio),
        "consumeQueueDiskRatio": str(store.disk.used_percent(config.queues_path) / 100),
        "commitLogDirCapacity": f"Total : {_bytes(room.total)}, Free : {_bytes(room.free)}.",
        "dispatchBehindBytes": str(store.log.end - store.dispatched_offset),
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        "remainHowManyDataToFlush": _bytes(store.log.end - store.flushed_offset),
        "remainTransientStoreBufferNumbs": str(config.write_pool_buffers or _NO_POOL),
    }
    if config.write_pool_buffers:
        table["remainHowManyDataToCommit"] = _bytes(store.log.end - store.flushed_offset)
    return table


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes(count: int) -> str:
    """1.5 GiB. Java: MixAll.humanReadableByteCount"""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"
