"""`make demo`: a name server, a broker, a producer and two consumers, all in this process, in a few seconds.

Then Spark, which takes longest to start: messages stream into an archive of Parquet files, are counted there and plotted. At
the end the broker is stopped, and its files are read without it. `--no-spark` leaves Spark out; `--keep DIRECTORY` says where
the archive and the plot stay.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orbitmq as mq
from orbitmq.storage.reader import StoreReader
from orbitmq.testing import Server

TOPIC = "Orders"
MANY = 2000
SHOPS = ("shop-a", "shop-b", "shop-c")


async def main(keep: Path | None, *, with_spark: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="orbitmq-demo-") as folder:
        started = time.perf_counter()
        with Server(data=Path(folder), settings={"diskMaxUsedSpaceRatio": "99"}) as server:  # also on a full laptop
            title("1. Start")
            say(f"a name server on {server.address} and a broker on {server.broker_address}")
            say(f"ready after {milliseconds(started)}, in this process; Java clients could connect now")
            async with mq.connect(server.address) as client:
                await send_orders(client)
                await receive_paid_orders(client)
                await send_many(client)
                if with_spark:
                    await archive_with_spark(client, server, keep or Path(tempfile.mkdtemp(prefix="orbitmq-archive-")))
        read_the_files(Path(folder))
    print("\nNext: README.md, `orbitmq dev` for a server of your own, `make test` for the proofs.")


async def send_payments(producer: mq.Producer) -> None:
    sends = (
        producer.send("Payments", b'{"cents": %d}' % (100 + number), tag=SHOPS[number % 3 * number % 5 % 3])
        for number in range(300)
    )
    await asyncio.gather(*sends)


async def send_orders(client: mq.Client) -> None:
    title("2. Send")
    placed: Counter[int] = Counter()
    last_id = ""
    async with client.producer(group="demo-producer", timeout=30) as producer:
        for number in range(12):
            tag = "paid" if number % 3 == 0 else "new"
            receipt = await producer.send(TOPIC, f"order {number}".encode(), tag=tag, keys=[f"order-{number}"])
            placed[receipt.queue.queue_id] += 1
            last_id = receipt.message_id
    say(f"12 messages to topic {TOPIC}, which the first one created; spread over its queues:")
    for queue_id, count in sorted(placed.items()):
        say(f"   queue {queue_id}  {'#' * count}")
    say(f"the last one has id {last_id}")


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
    async with client.producer(group="demo-producer", timeout=30) as producer:
        started = time.perf_counter()
        sends = (producer.send("Readings", b"x" * 200) for _ in range(MANY))
        await asyncio.gather(*sends)
        seconds = time.perf_counter() - started
    say(
        f"{MANY:,} messages at once: {MANY / seconds:,.0f} a second, with client, broker and disk sharing one interpreter"
    )


async def archive_with_spark(client: mq.Client, server: Server, keep: Path) -> None:
    title("5. A streaming archive, on Spark")
    from orbitmq.clock import SystemClock
    from orbitmq.spark.archive import Archive
    from orbitmq.spark.frames import lake_frame
    from orbitmq.spark.registration import register
    from orbitmq.spark.session import start_session
    from orbitmq.spark.source_options import source_options, source_schema
    from orbitmq.spark.statistics import COLUMNS, statistics, statistics_page

    say("starting Spark; a Java runtime is fetched if this machine has none")
    started = time.perf_counter()
    loop, threads = (
        asyncio.get_running_loop(),
        ThreadPoolExecutor(1),
    )  # Spark's calls block; the broker lives on this loop
    spark = await loop.run_in_executor(threads, lambda: start_session("orbitmq demo"))
    say(f"Spark {spark.version} is up after {time.perf_counter() - started:.1f} s")
    options = {"nameServer": server.address, "subscribe": "Payments", "startingOffsets": "earliest"}
    lake = str(keep / "archive")
    archived = 0
    try:
        async with client.producer(group="demo-producer", timeout=30) as producer:
            await send_payments(producer)  # which creates the topic
            await loop.run_in_executor(threads, register, spark)
            archive = await loop.run_in_executor(
                threads,
                lambda: Archive(
                    spark,
                    source_options(options, streaming=True),
                    source_schema(options),
                    lake,
                    layout="hour",
                    compression="zstd",
                    clock=SystemClock(),
                ),
            )
            for batch in range(3):
                if batch:
                    await send_payments(producer)
                await loop.run_in_executor(threads, archive.step)
                say(f"batch {batch}: {archive.summary.rows - archived} new messages archived, each exactly once")
                archived = archive.summary.rows
        found = await loop.run_in_executor(
            threads, lambda: statistics(lake_frame(spark, lake).select(*COLUMNS.split(",")))
        )
        say(f"counted with Spark SQL from {archive.summary.files} Parquet files, by tag:")
        for _, tag, count, _ in found.tags:
            say(f"   {tag:10} {count:>6,} messages  {'#' * (count // 15)}")
        (keep / "payments.html").write_text(statistics_page(found))
        say(f"the archive is in {lake}, its charts in {keep / 'payments.html'}")
    finally:
        await loop.run_in_executor(threads, spark.stop)
        threads.shutdown()


def read_the_files(folder: Path) -> None:
    title("6. Look at the files")
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")
    parser.add_argument(
        "--keep", type=Path, help="where the archive and the plot stay (default: a temporary directory)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    wanted = arguments()
    if wanted.keep:
        wanted.keep.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(wanted.keep, with_spark=not wanted.no_spark))
