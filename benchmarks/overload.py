"""Twice what the broker can take: `python -m benchmarks overload [--seconds S] [--quick]`.

    sustainable   sends a second with 32 connections x 16 in flight, each answer followed by the next send
    normal        median and 99th of sends at half of that
    overload      twice that is sent for five minutes, whatever is answered, by 64 connections with at most a second's worth in
                  flight (what is due while all of that is used up is `held` in the client). Accepted: rate, median, 99th;
                  refused; the most anonymous memory
    back after    seconds until sends at half the sustainable rate are all accepted, and as fast as before

`broker_share_of_a_processor` says whether the broker had one: on a machine with other work it has less, and everything takes longer.
Ends with an error if the broker is gone, refused nothing, took longer than a second for one accepted send of a hundred, grew without
bound or was not back to normal within five seconds. Results: benchmarks/results/overload.json.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop import orbit

from benchmarks.machine import about, compile_c, memory_mb, processor_seconds
from benchmarks.replicas import Load, keep, options, printed, start_master, stopped

if TYPE_CHECKING:
    from tests.interop.apache import Broker

MOST_MS: Final = 1000.0
MOST_GROWTH_MB: Final = 512.0
BACK_WITHIN_SECONDS: Final = 5.0
CONNECTIONS: Final = 64
BODY_BYTES: Final = 100  # so that the disk is not what is measured


def overload(broker: Broker, load: Load, rate: float, in_flight: int, seconds: float) -> dict[str, Any]:
    before_mb = most_mb = memory_mb(broker.process.pid, "RssAnon")
    began, used = time.monotonic(), processor_seconds(broker.process.pid)
    generator = load.start("send-open", CONNECTIONS, in_flight, seconds, rate)
    while generator.poll() is None:
        most_mb = max(most_mb, memory_mb(broker.process.pid, "RssAnon"))
        time.sleep(0.2)
    figures = printed(generator)
    share = (processor_seconds(broker.process.pid) - used) / (time.monotonic() - began)
    return {
        "offered_rate": round(rate), "accepted_rate": figures["rate"], "refused": figures["busy"],
        "held_in_client": figures["held"], "other_errors": figures["errors"], "p50_ms": figures["p50"],
        "p99_ms": figures["p99"], "anonymous_mb_before": round(before_mb), "anonymous_mb_most": round(most_mb),
        "broker_share_of_a_processor": round(share, 2),
    }  # fmt: skip


def seconds_until_normal(load: Load, rate: float, in_flight: int, normal_p99_ms: float) -> float:
    """In half seconds of load; the first that is normal counts with its length."""
    began = time.monotonic()
    while time.monotonic() - began < 4 * BACK_WITHIN_SECONDS:
        half_second = load.run("send-open", CONNECTIONS, in_flight, 0.5, rate)
        is_fast = half_second["p99"] <= max(50.0, 3 * normal_p99_ms)
        if is_fast and not half_second["busy"] + half_second["errors"] + half_second["held"]:
            break
    return round(time.monotonic() - began, 1)


def verdict(figures: dict[str, Any]) -> list[str]:
    over = figures["overload"]
    grown_mb = over["anonymous_mb_most"] - over["anonymous_mb_before"]
    checks = {
        "nothing was refused": over["refused"] > 0,
        "other answers than SYSTEM_BUSY": over["other_errors"] == 0,
        f"p99 of accepted sends above {MOST_MS:.0f} ms": over["p99_ms"] < MOST_MS,
        f"memory grew by {grown_mb} MB": grown_mb < MOST_GROWTH_MB,
        f"not back to normal within {BACK_WITHIN_SECONDS:.0f} s": figures["back_after_seconds"] <= BACK_WITHIN_SECONDS,
    }
    return [what for what, is_so in checks.items() if not is_so]


def run(argv: list[str]) -> None:
    chosen = options(argv, __doc__, seconds=300.0)
    seconds, probe = (chosen.seconds / 10, 3.0) if chosen.quick else (chosen.seconds, 10.0)
    figures: dict[str, Any] = {"machine": about(seconds=seconds)}
    with tempfile.TemporaryDirectory(prefix="orbitmq-overload-") as base:
        folder = Path(base)
        program = compile_c(folder, "load")
        name_server = orbit.start_name_server(folder / "nameserver")
        # A disk counts as full from 1 % on, so old files go at once: five minutes of messages are more than most disks have.
        settings = {"osPageCacheBusyTimeOutMills": 1000, "waitTimeMillsInSendQueue": 200, "diskMaxUsedSpaceRatio": 1, "diskSpaceCleanForciblyRatio": 1,
                    "cleanResourceInterval": 500, "mappedFileSizeCommitLog": 256 << 20}  # fmt: skip
        try:
            with stopped(start_master(folder, name_server.address, settings)) as broker:
                load = Load(program, broker.address, BODY_BYTES)
                load.run("send", 32, 16, probe)  # warm
                sustainable = load.run("send", 32, 16, probe)["rate"]
                in_flight = max(1, int(sustainable / CONNECTIONS))
                normal = load.run("send-open", CONNECTIONS, in_flight, probe, sustainable / 2)
                figures |= {
                    "sustainable_rate": sustainable,
                    "normal_p50_ms": normal["p50"],
                    "normal_p99_ms": normal["p99"],
                }
                figures["overload"] = overload(broker, load, 2 * sustainable, in_flight, seconds)
                figures["back_after_seconds"] = seconds_until_normal(load, sustainable / 2, in_flight, normal["p99"])
        finally:
            name_server.process.kill()
    keep("overload", figures, quick=chosen.quick)
    if failures := verdict(figures):
        raise SystemExit("; ".join(failures))
