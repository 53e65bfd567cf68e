"""Mixed load with consumers coming and going: what was sent is what every group receives, by ledger.

A few seconds in the suite; `make ledger` runs it for five minutes and prints its figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.client.client import connect
from orbitmq.errors import RetryLater
from orbitmq.transport.address import parse_address
from tests.broker.kit import MAX_OFFSET, Wire
from tests.interop import orbit
from tests.marks import LEDGER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from orbitmq.client.client import Client
    from orbitmq.client.received import ReceivedMessage

    Send = Callable[[Any, str, list[str]], Awaitable[object]]

SECONDS: Final = float(os.environ.get("ORBITMQ_LEDGER_MINUTES", "0.1")) * 60
SETTLE_SECONDS: Final = 60.0  # for what is retried or delayed; only a lost message takes that long
TOPIC: Final = "Ledger"
MEMBER_LIVES_SECONDS: Final = (0.5, 3.0)
MEMORY_MAY_GROW_KB: Final = 40 << 10


class Ledger:
    """What was acknowledged, and how often each group received it."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.received: dict[str, Counter[str]] = {}
        self.order: list[tuple[str, int]] = []  # what the ordered group saw for the first time, in its order
        self.members = 0
        self.over = False

    def note(self, group: str, message: ReceivedMessage) -> bool:
        """Whether the group sees it for the first time."""
        text = message.body.decode().split(" ", 1)[0]
        counts = self.received.setdefault(group, Counter())
        counts[text] += 1
        return counts[text] == 1

    def missing(self) -> dict[str, int]:
        missing = {group: len(self.sent - seen.keys()) for group, seen in self.received.items()}
        return {group: count for group, count in missing.items() if count}


@LEDGER
@pytest.mark.timeout(SECONDS + 2 * SETTLE_SECONDS + 60)
async def test_what_is_sent_is_what_every_group_receives(tmp_path: Path) -> None:
    name_server = await asyncio.to_thread(orbit.start_name_server, tmp_path / "nameserver")
    try:
        broker = await asyncio.to_thread(orbit.start_broker, tmp_path / "broker", name_server.address)
        try:
            ledger = Ledger()
            memory = await under_load(name_server.address, broker.process.pid, ledger)
            stored = await records_stored(broker.address)
            printed = broker.process.printed()
        finally:
            broker.process.kill()
    finally:
        name_server.process.kill()
    duplicates = {group: seen.total() - len(seen) for group, seen in ledger.received.items()}
    sys.stdout.write(
        f"\n{len(ledger.sent)} sent, {ledger.members} members came and went, given twice {duplicates}, memory {memory} KB\n"
    )
    assert stored == len(ledger.sent)  # exactly: nothing twice, nothing unasked
    for group, seen in ledger.received.items():
        assert seen.keys() == ledger.sent, group
    assert duplicates["steady"] == 0  # only a change of members may make a message come again
    for key in {key for key, _ in ledger.order}:
        numbers = [number for of, number in ledger.order if of == key]
        assert numbers == sorted(numbers), key
    assert not re.search(r"ERROR|CRITICAL|Traceback", printed), printed[-3000:]
    assert memory[-1] - memory[0] < MEMORY_MAY_GROW_KB


async def under_load(name_server: str, pid: int, ledger: Ledger) -> list[int]:
    """Run the load, then wait until everyone has everything; what the broker's memory was, third by third."""
    memory: list[int] = []
    async with AsyncExitStack() as clients:
        steady = await clients.enter_async_context(connect(name_server, instance_name="steady"))
        producer = await clients.enter_async_context(steady.producer("ledger", timeout=20.0))
        await producer.send(TOPIC, "first")
        ledger.sent.add("first")
        consumers = [
            asyncio.create_task(keep_changing(name_server, ledger, group, number))
            for group in ("shared", "ordered", "flaky")
            for number in range(2)
        ]
        await clients.enter_async_context(member(steady, ledger, "steady"))
        producers = [asyncio.create_task(produce(producer, ledger, kind)) for kind in WAYS]
        for _ in range(3):
            await asyncio.sleep(SECONDS / 3)
            memory.append(anonymous_memory_kb(pid))
        ledger.over = True
        await asyncio.gather(*producers)
        for group in ("shared", "ordered", "flaky"):
            await clients.enter_async_context(member(steady, ledger, group))
        await asyncio.gather(*consumers)
        async with asyncio.timeout(SETTLE_SECONDS):
            while len(ledger.received) < 4 or ledger.missing():
                await asyncio.sleep(0.1)
    return memory


# ---- sending


async def one_by_one(producer: Any, kind: str, texts: list[str]) -> None:
    for text in texts:
        await producer.send(TOPIC, text, tag=kind, keys=text)


async def large(producer: Any, kind: str, texts: list[str]) -> None:
    await producer.send(TOPIC, f"{texts[0]} {'compress me ' * 2000}")
    await one_by_one(producer, kind, texts[1:])


async def batch(producer: Any, kind: str, texts: list[str]) -> None:
    await producer.send_batch(TOPIC, texts, tag=kind)


async def in_order(producer: Any, kind: str, texts: list[str]) -> None:
    for text in texts:
        await producer.send(TOPIC, text, order_key=kind)


async def delayed(producer: Any, kind: str, texts: list[str]) -> None:
    await asyncio.gather(*(producer.send(TOPIC, text, delay_level=1) for text in texts))


WAYS: Final[dict[str, Send]] = {
    "single": one_by_one,
    "large": large,
    "batch": batch,
    "order-a": in_order,
    "order-b": in_order,
    "delayed": delayed,
}


async def produce(producer: Any, ledger: Ledger, kind: str) -> None:
    number = 0
    while not ledger.over:
        texts = [f"{kind}:{number + i}" for i in range(10)]
        await WAYS[kind](producer, kind, texts)
        ledger.sent.update(texts)
        number += len(texts)
        await asyncio.sleep(0.02)


# ---- receiving


async def keep_changing(name_server: str, ledger: Ledger, group: str, number: int) -> None:
    """A member of the group that comes and goes, each time as somebody else."""
    chance = random.Random(f"{group}{number}")
    lives = 0
    while not ledger.over:
        lives += 1
        async with (
            connect(name_server, instance_name=f"{group}-{number}-{lives}") as client,
            member(client, ledger, group),
        ):
            ledger.members += 1
            await asyncio.sleep(chance.uniform(*MEMBER_LIVES_SECONDS))


def member(client: Client, ledger: Ledger, group: str) -> Any:
    async def handle(message: ReceivedMessage) -> None:
        if group == "flaky" and message.attempt == 1 and message.queue_offset % 20 == 0:
            raise RetryLater("this one fails at first", delay_level=1)
        if ledger.note(group, message) and group == "ordered" and message.body.startswith(b"order-"):
            key, _, number = message.body.decode().partition(":")
            ledger.order.append((key, int(number)))

    return client.consumer(TOPIC, group=group, handler=handle, start="earliest", orderly=group == "ordered")


# ---- the broker's own figures


async def records_stored(address: str) -> int:
    client = Wire(parse_address(address))
    total = 0
    for queue_id in range(4):
        answer = await client.ask(MAX_OFFSET, {"topic": TOPIC, "queueId": queue_id})
        total += int(answer.fields["offset"])
    await client.close()
    return total


def anonymous_memory_kb(pid: int) -> int:
    """Without the pages of mapped files, which are the store's and the kernel's."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123 - no file of ours
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
