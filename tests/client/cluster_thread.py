"""A scripted cluster on an event loop in a thread of its own, for tests that have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from tests.client.scripted import ScriptedCluster, scripted_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


class _ClusterThread:
    def __init__(self, topics: dict[str, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready: threading.Event = threading.Event()
        self._stop: asyncio.Event | None = None
        self._topics = topics
        self.cluster: ScriptedCluster | None = None
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with scripted_cluster(topics=self._topics) as self.cluster:
            self._ready.set()
            await self._stop.wait()
        held = asyncio.all_tasks() - {asyncio.current_task()}  # pulls of clients that are gone
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    def close(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def cluster_in_a_thread(topics: dict[str, int]) -> Iterator[ScriptedCluster]:
    thread = _ClusterThread(topics)
    assert thread.cluster is not None
    try:
        yield thread.cluster
    finally:
        thread.close()
