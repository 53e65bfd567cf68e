"""A slave that is 5 GB behind: `python -m benchmarks catch_up [--gigabytes G] [--quick]`.

    alone        sends a second, and their 99th percentile, before there is a slave: 16 connections, one in flight on each
    beside it    the same while the slave catches up; the share of the rate that is left
    caught up    seconds until the slave has all but 64 MB of a log that goes on growing; bytes a second that it copied
    the same     in the end all of the log is compared, byte by byte

Master, slave and generator share the machine. Ends with an error if less than 70 % of the rate is left, a send failed or a byte
differs. Results: benchmarks/results/catch_up.json.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.interop import orbit

from benchmarks.machine import about, compile_c
from benchmarks.replicas import (
    Load,
    compare_logs,
    keep,
    log_end,
    options,
    printed,
    start_master,
    start_slave,
    stopped,
    wait_until_copied,
)

LEAST_SHARE: Final = 0.7
NEAR_BYTES: Final = 64 << 20
SENDERS: Final = ("send", 16, 1)
MOST_SECONDS: Final = 600.0


def run(argv: list[str]) -> None:
    chosen = options(argv, __doc__, gigabytes=5.0)
    behind = int((chosen.gigabytes / 10 if chosen.quick else chosen.gigabytes) * (1 << 30))
    probe = 3.0 if chosen.quick else 10.0
    figures: dict[str, Any] = {"machine": about(bytes_behind=behind)}
    with tempfile.TemporaryDirectory(prefix="orbitmq-catch-up-") as base:
        folder = Path(base)
        program = compile_c(folder, "load")
        name_server = orbit.start_name_server(folder / "nameserver")
        try:
            with stopped(start_master(folder, name_server.address)) as master:
                load = Load(program, master.address)
                while log_end(master) < behind:
                    load.run("send", 4, 32, 2.0)
                alone = load.run(*SENDERS, probe)
                figures |= {"alone_rate": alone["rate"], "alone_p99_ms": alone["p99"]}
                began, start = time.monotonic(), log_end(master)
                with stopped(start_slave(folder, name_server.address)) as slave:
                    rates, slowest_ms, errors = [], 0.0, 0.0
                    while log_end(master) - log_end(slave) > NEAR_BYTES:
                        if time.monotonic() - began > MOST_SECONDS:
                            raise SystemExit(f"the slave is still {log_end(master) - log_end(slave)} bytes behind")
                        beside = printed(load.start(*SENDERS, 2.0))
                        rates.append(beside["rate"])
                        slowest_ms, errors = max(slowest_ms, beside["p99"]), errors + beside["errors"]
                    seconds = time.monotonic() - began
                    share = sum(rates) / len(rates) / alone["rate"] if rates else 1.0
                    figures |= {
                        "beside_rate": round(sum(rates) / max(1, len(rates))), "beside_worst_p99_ms": slowest_ms,
                        "share": round(share, 2), "seconds": round(seconds, 1), "failed_sends": errors,
                        "copied_mb_per_second": round(log_end(slave) / seconds / 1e6), "log_grew_by": log_end(master) - start,
                    }  # fmt: skip
                    wait_until_copied(master, slave)
                    figures["bytes_the_same"] = compare_logs(master, slave)
        finally:
            name_server.process.kill()
    keep("catch_up", figures, quick=chosen.quick)
    if figures["share"] < LEAST_SHARE or figures["failed_sends"]:
        raise SystemExit(f"sends kept {figures['share']:.0%} of their rate, {figures['failed_sends']:.0f} failed")
