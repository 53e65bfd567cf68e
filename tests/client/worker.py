"""A user's program while a test does things to its world: `python -W error -m tests.client.worker NAME_SERVERS TOPIC ROLE`.

    sender     sends numbers until it is stopped       {"acked": 7}  {"failed": ["CallTimeout", 3, "hint"]}
    reader     handles what comes                      {"handled": 7}
    raiser     the same, failing each message once     {"raised": 7}
    hanger     handlers that never end                 {"hangs": 7}
    crowd      a thousand producers, closed at once    {"acked": 7}

It tells what happens as a line of JSON each. SIGTERM: stop, as a program should. SIGUSR1: its clock jumps, by forty days forth and
eighty back in turn. What else is printed, say by asyncio about tasks that were forgotten, is wrong.
"""

import asyncio
import dataclasses
import itertools
import json
import logging
import signal
import sys

import orbitmq as mq
from orbitmq.clock import SystemClock

CALLERS = 4
TIMEOUT_SECONDS = 2.0
PATIENCE_SECONDS = 60.0  # beyond its time limit no call may take longer than a busy machine can explain
_DAY_MS = 86_400_000


class JumpingClock(SystemClock):
    """The machine's clock, set wrong now and then."""

    def __init__(self) -> None:
        self._wrong_by_ms = 0
        self._jumps = itertools.cycle((40 * _DAY_MS, -80 * _DAY_MS))

    def now_ms(self) -> int:
        return super().now_ms() + self._wrong_by_ms

    def jump(self) -> None:
        self._wrong_by_ms += next(self._jumps)
        tell(jumped=self._wrong_by_ms)


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


async def send(client: mq.Client, topic: str, stop: asyncio.Event) -> None:
    numbers = itertools.count()

    async def call(producer: mq.Producer) -> None:
        while not stop.is_set():
            number = next(numbers)
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS + PATIENCE_SECONDS):
                    await producer.send(topic, str(number), timeout=TIMEOUT_SECONDS)
            except mq.OrbitError as error:
                tell(failed=[type(error).__name__, error.code, error.hint])
                await asyncio.sleep(0.1)
            else:
                tell(acked=number)
            await asyncio.sleep(0.02)

    async with client.producer("Senders") as producer:
        await asyncio.gather(*(call(producer) for _ in range(CALLERS)))


async def read(client: mq.Client, topic: str, role: str, stop: asyncio.Event) -> None:
    async def handle(message: mq.ReceivedMessage) -> None:
        number = int(message.body)
        if role == "raiser" and message.attempt == 1:
            tell(raised=number)
            raise ValueError("not the first time")
        if role == "hanger":
            tell(hangs=number)
            await asyncio.Event().wait()
        tell(handled=number)

    async with client.consumer(
        topic, group=f"Readers{topic}", start="earliest", handler=handle, commit_every=0.5,
        consume_timeout=1.0 if role == "hanger" else 60.0, close_timeout=1.0,
    ):  # fmt: skip
        await stop.wait()


async def crowd(client: mq.Client, topic: str) -> None:
    producers = [await client.producer(f"Crowd{number}").start() for number in range(1000)]
    receipts = await asyncio.gather(*(producer.send(topic, b"0", timeout=60) for producer in producers))
    await asyncio.gather(*(producer.close() for producer in producers))
    tell(acked=len({receipt.message_id for receipt in receipts}))


async def main() -> None:
    name_servers, topic, role = sys.argv[1:]
    stop, clock = asyncio.Event(), JumpingClock()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, clock.jump)
    async with mq.Client(dataclasses.replace(mq.connect(name_servers).config, clock=clock)) as client:
        tell(ready=role)
        if role == "sender":
            await send(client, topic, stop)
        elif role == "crowd":
            await crowd(client, topic)
        else:
            await read(client, topic, role, stop)


if __name__ == "__main__":
    logging.getLogger("orbitmq").addHandler(logging.NullHandler())  # as a program that keeps its log elsewhere
    asyncio.run(main())
