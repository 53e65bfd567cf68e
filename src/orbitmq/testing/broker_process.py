"""One broker of a test's cluster, in a process of its own: `python -m orbitmq.testing.broker_process STORE SETTINGS AHEAD_MS`.

It prints a line of JSON when it is ready, or when it cannot be: {"address": ...} or {"error": ...}. Then it obeys lines of JSON on
its standard input, and answers each with `{}` when it is done:

    {"advance_ms": 180000}         from now on it is that much later
    {"refuse_sends": "why"}        "": take them again
    {"drop_connections": true}

At the end of its input, which is also what the end of the test's process looks like, it stops cleanly.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitmq.broker.broker import Broker
from orbitmq.errors import OrbitError
from orbitmq.testing.clock import MovableClock
from orbitmq.testing.small_settings import broker_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


async def serve(store: Path, settings: Mapping[str, str], ahead_ms: int) -> None:
    clock = MovableClock()
    clock.advance(ms=ahead_ms)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    async with Broker(broker_configuration(store, settings), clock=clock) as broker:
        _say({"address": str(broker.address)})

        def listen() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(obey, json.loads(line), broker, clock, partial(_say, {}))
            loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=listen, daemon=True).start()
        await ended.wait()


def obey(order: Mapping[str, Any], broker: Broker, clock: MovableClock, done: Callable[[], None]) -> None:
    clock.advance(ms=order.get("advance_ms", 0))
    if "refuse_sends" in order:
        broker.state.sending.refusal = order["refuse_sends"]
    if "drop_connections" in order:
        broker.drop_connections()
    # Sockets that are cut close in the loop's next turn. A test that heard of it before could stop this process in between.
    asyncio.get_running_loop().call_soon(done)


def _say(what: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    store, settings, ahead_ms = sys.argv[1:]
    try:
        asyncio.run(serve(Path(store), json.loads(settings), int(ahead_ms)))
    except OrbitError as error:
        _say({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
