"""The short way out and the long way out: whatever is pulled, the two answer the same bytes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.kit import LITE_PULL, PULL, Wire, pull_header, running, wire
from tests.broker.two_ways import EXPRESS, ORDINARY, TwoWays, two_ways
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.headers.pull import PullMessage

pytestmark = pytest.mark.usefixtures("loops")

FOUND: dict[str, PullMessage] = {
    "from the start": pull_header("T", 0, 0, {"expression_type": "TAG"}),
    "without a kind": pull_header("T", 0, 0),
    "from the middle": pull_header("T", 0, 7),
    "a few": pull_header("T", 0, 2, {"max_msg_nums": 3}),
    "in bulk": pull_header("T", 0, 0, {"max_msg_nums": 100, "bulk_bytes": 1 << 20}),
    "little": pull_header("T", 0, 0, {"max_msg_bytes": 500}),
    "by tag": pull_header("T", 0, 0, {"subscription": "odd || none", "expression_type": "TAG"}),
    "committing": pull_header("T", 0, 4, {"sys_flag": PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, "commit_offset": 4}),
    "as subscribed": pull_header("T", 0, 0, {"sys_flag": 0, "subscription": None, "consumer_group": "Members"}),
}
REST: dict[str, PullMessage] = {
    "nothing yet": pull_header("T", 0, 10),
    "nothing of this tag": pull_header("T", 0, 0, {"subscription": "none"}),
    "beyond the end": pull_header("T", 0, 99),
    "an empty queue": pull_header("T", 3, 0),
    "no such queue": pull_header("T", 9, 0),
    "no such topic": pull_header("Unheard", 0, 0),
    "no members": pull_header("T", 0, 0, {"sys_flag": 0, "consumer_group": "Nobody"}),
    "a tag expression without tags": pull_header("T", 0, 0, {"subscription": "||"}),
    "an unknown kind": pull_header("T", 0, 0, {"expression_type": "XPATH"}),
}


@asynccontextmanager
async def filled(tmp_path: Path) -> AsyncIterator[tuple[Broker, Wire, TwoWays]]:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        for number in range(10):
            await client.send("T", b"message %d" % number, TAGS="odd" if number % 2 else "even")
        await client.heartbeat("c", "Members", {"T": "even"})
        async with two_ways(broker) as two:
            yield broker, client, two


async def test_both_ways_answer_the_same_bytes(tmp_path: Path) -> None:
    async with filled(tmp_path) as (_, _, two):
        for name, header in {**FOUND, **REST}.items():
            for code in (PULL, LITE_PULL):
                frames = [await two.frame(way, code, header.to_fields()) for way in (EXPRESS, ORDINARY)]
                assert frames[0] == frames[1], name


async def test_both_ways_remember_and_count_the_same(tmp_path: Path) -> None:
    async with filled(tmp_path) as (broker, _, two):
        header = FOUND["committing"]
        seen = []
        for way in (EXPRESS, ORDINARY):
            await two.frame(way, PULL, header.to_fields())
            offsets, stats = broker.state.offsets, broker.state.statistics
            seen.append((offsets.get("G", "T", 0), offsets.pulled("G", "T", 0)))
            counter = stats.counter("GROUP_GET_NUMS", "T@G")
            size = stats.counter("GROUP_GET_SIZE", "T@G")
            everything = stats.counter("BROKER_GET_NUMS", "DefaultCluster")
            assert (counter.value, counter.times) == (6 * len(seen), len(seen))
            assert (size.times, everything.value) == (len(seen), 6 * len(seen))
        assert seen == [(4, 10), (4, 10)]


async def test_a_pull_that_finds_something_does_not_reach_the_ordinary_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as (broker, _, two):
        monkeypatch.setattr(broker.state.pulling, "_answer", None)
        for name, header in FOUND.items():
            assert (await two.frame(EXPRESS, PULL, header.to_fields())).body, name


async def test_a_pull_that_waits_does_not_reach_the_ordinary_handler_and_is_answered_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as (broker, client, two):
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT_OFFSET
        header = pull_header("T", 0, 10, {"sys_flag": flags, "suspend_timeout_millis": 60_000, "commit_offset": 9})
        held = broker.state.pulling.held
        ordinary = asyncio.ensure_future(two.frame(ORDINARY, PULL, header.to_fields()))
        await until(lambda: len(held) == 1)
        monkeypatch.setattr(broker.state.pulling, "pull", None)
        express = asyncio.ensure_future(two.frame(EXPRESS, PULL, header.to_fields()))
        await until(lambda: len(held) == 2)
        assert broker.state.offsets.get("G", "T", 0) == 9

        await client.send("T", b"at last")

        assert await express == await ordinary
        assert b"at last" in (await express).body


async def test_a_reset_is_taken_up_by_the_next_pull(tmp_path: Path) -> None:
    async with filled(tmp_path) as (broker, client, _):
        broker.state.offsets.reset("G", "T", 0, 8)
        moved = await client.pull("T", 0, 0)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (21, "8")
        assert (await client.pull("T", 0, 8)).fields["nextBeginOffset"] == "10"


async def test_a_group_that_may_not_read_any_more_is_refused(tmp_path: Path) -> None:
    async with filled(tmp_path) as (broker, client, _):
        assert (await client.pull("T")).code == 0
        broker.state.groups.disable("G")
        assert (await client.pull("T")).code == 16
