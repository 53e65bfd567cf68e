"""`make demo`: a name server, a broker, a producer and two consumers, all in this process, in a few seconds.

Then the broker is stopped, and its files are read without it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import orbitmq as mq
from orbitmq.storage.reader import StoreReader
from orbitmq.testing import Server

TOPIC = "Orders"
MANY = 2000


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="orbitmq-demo-") as folder:
        started = time.perf_counter()
        with Server(data=Path(folder)) as server:
            title("1. Start")
            say(f"a name server on {server.address} and a broker on {server.broker_address}")
            say(f"ready after {milliseconds(started)}, in this process; Java clients could connect now")
            async with mq.connect(server.address) as client:
                await send_orders(client)
                await receive_paid_orders(client)
                await send_many(client)
        read_the_files(Path(folder))
    print("\nNext: README.md, `orbitmq dev` for a server of your own, `make test` for the proofs.")


async def send_orders(client: mq.Client) -> None:
    title("2. Send")
    placed: Counter[int] = Counter()
    async with client.producer(group="demo-producer") as producer:
        for number in range(12):
            tag = "paid" if number % 3 == 0 else "new"
            receipt = await producer.send(TOPIC, f"order {number}".encode(), tag=tag, keys=[f"order-{number}"])
            placed[receipt.queue.queue_id] += 1
    say(f"12 messages to topic {TOPIC}, which the first one created; spread over its queues:")
    for queue_id, count in sorted(placed.items()):
        say(f"   queue {queue_id}  {'#' * count}")
    say(f"the last one has id {receipt.message_id}")


async def receive_paid_orders(client: mq.Client) -> None:
    title("3. Receive")
    received: list[str] = []
    async with client.consumer(TOPIC, group="demo-consumer", filter="paid", start="earliest") as consumer:
        async for message in consumer:
            async with message.process():
                received.append(message.body.decode())
            if len(received) == 4:
                break
    say(f"a consumer that asked for tag 'paid' got {', '.join(sorted(received))}")


async def send_many(client: mq.Client) -> None:
    title("4. Send many")
    async with client.producer(group="demo-producer") as producer:
        started = time.perf_counter()
        sends = (producer.send("Readings", b"x" * 200) for _ in range(MANY))
        await asyncio.gather(*sends)
        seconds = time.perf_counter() - started
    say(
        f"{MANY:,} messages at once: {MANY / seconds:,.0f} a second, with client, broker and disk sharing one interpreter"
    )


def read_the_files(folder: Path) -> None:
    title("5. Look at the files")
    store = next(path.parent for path in folder.rglob("commitlog") if path.is_dir())
    with StoreReader(store) as reader:
        say(
            f"the broker has stopped {'cleanly' if reader.is_clean else 'badly'}; its store, in Apache's own format, still holds:"
        )
        for topic in (TOPIC, "Readings"):
            count = sum(queue.max_offset - queue.min_offset for queue in reader.queues(topic))
            say(f"   {topic:10} {count:>6,} messages")


def title(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"   {text}")


def milliseconds(since: float) -> str:
    return f"{(time.perf_counter() - since) * 1000:.0f} ms"


if __name__ == "__main__":
    asyncio.run(main())
