"""`make demo`: a name server, a broker, producers and consumers, all in this process: sends, a delay, a transaction, a retry.

Then Spark, which takes longest to start: messages stream into an archive of Parquet files, are counted there and plotted. At
the end the broker is stopped, and its files are read without it. `--no-spark` leaves Spark out; `--keep DIRECTORY` says where
the archive and the plot stay.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import orbitmq as mq
from orbitmq.storage.reader import StoreReader
from orbitmq.testing import Server

TOPIC = "Orders"
MANY = 2000
SHOPS = ("shop-a", "shop-b", "shop-c")
FIGURES: dict[str, str] = {}
STEPS = itertools.count(1)


async def main(keep: Path | None, *, with_spark: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="orbitmq-demo-") as folder:
        started = time.perf_counter()
        with Server(data=Path(folder), settings={"diskMaxUsedSpaceRatio": "99"}) as server:  # also on a full laptop
            title("Start")
            say(f"a name server on {server.address} and a broker on {server.broker_address}")
            FIGURES["start of the servers"] = milliseconds(started)
            say(f"ready after {milliseconds(started)}, in this process; Java clients could connect now")
            async with mq.connect(server.address) as client:
                await send_orders(client)
                await receive_paid_orders(client)
                await send_many(client)
                await remind_in_an_hour(client, server)
                await pay_in_a_transaction(client)
                await fail_once(client, server)
                if with_spark:
                    await archive_with_spark(client, server, keep or Path(tempfile.mkdtemp(prefix="orbitmq-archive-")))
        read_the_files(Path(folder))
    sum_up(started)
    print("\nNext: README.md, `orbitmq dev` for a server of your own, `make test` for the proofs.")


async def send_payments(producer: mq.Producer) -> None:
    sends = (
        producer.send("Payments", b'{"cents": %d}' % (100 + number), tag=SHOPS[number % 3 * number % 5 % 3])
        for number in range(300)
    )
    await asyncio.gather(*sends)


async def send_orders(client: mq.Client) -> None:
    title("Send")
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
    title("Receive")
    received: list[str] = []
    async with client.consumer(TOPIC, group="demo-consumer", filter="paid", start="earliest") as consumer:
        async for message in consumer:
            async with message.process():
                received.append(message.body.decode())
            if len(received) == 4:
                break
    say(f"a consumer that asked for tag 'paid' got {', '.join(sorted(received))}")


async def send_many(client: mq.Client) -> None:
    title("Send many")
    async with client.producer(group="demo-producer", timeout=30) as producer:
        started = time.perf_counter()
        sends = (producer.send("Readings", b"x" * 200) for _ in range(MANY))
        await asyncio.gather(*sends)
        seconds = time.perf_counter() - started
    FIGURES["messages a second, many at once"] = f"{MANY / seconds:,.0f}"
    say(
        f"{MANY:,} messages at once: {MANY / seconds:,.0f} a second, with client, broker and disk sharing one interpreter"
    )


async def remind_in_an_hour(client: mq.Client, server: Server) -> None:
    title("A delay")
    async with client.producer(group="demo-producer", timeout=30) as producer:
        await producer.send("Reminders", b"drink some tea", delay=timedelta(hours=1))
    say("a reminder is sent, to be delivered in an hour; then the broker's clock is moved, as tests do")
    server.clock.advance(hours=1, seconds=2)
    async with client.consumer("Reminders", group="demo-reminders", start="earliest") as consumer:
        async for message in consumer:
            async with message.process():
                say(f"an hour later: {message.body.decode()!r}")
            break


async def pay_in_a_transaction(client: mq.Client) -> None:
    title("A transaction")
    async with client.transaction_producer(group="demo-payers", check=was_paid, timeout=30) as payer:
        async with payer.begin("Cards", b"card 1: charged") as transaction:
            transaction.commit()
        async with payer.begin("Cards", b"card 2: refused by the bank") as transaction:
            transaction.roll_back()
        async with payer.begin("Cards", b"card 3: charged") as transaction:
            transaction.commit()
    seen: list[str] = []
    async with client.consumer("Cards", group="demo-shipping", start="earliest") as consumer:
        async for message in consumer:
            async with message.process():
                seen.append(message.body.decode())
            if len(seen) == 2:
                break
    say(f"three begun, two committed; consumers see {', '.join(sorted(seen))}")


async def was_paid(message: mq.Message) -> bool | None:
    """Asked by a broker that has not heard how a transaction ended. Here it always has."""
    return None


async def fail_once(client: mq.Client, server: Server) -> None:
    title("A failure, and another try")
    async with client.producer(group="demo-producer", timeout=30) as producer:
        await producer.send("Mails", b"to an address that is full today")
    tries: list[str] = []
    delivered = asyncio.Event()

    async def deliver(message: mq.ReceivedMessage) -> None:
        tries.append(f"try {message.attempt} {'fails' if message.attempt == 1 else 'succeeds'}")
        if message.attempt == 1:
            raise mq.RetryLater("full")
        delivered.set()

    async with client.consumer("Mails", group="demo-mail", start="earliest", handler=deliver):
        while not delivered.is_set():
            server.clock.advance(seconds=10)  # as long as a first retry waits
            await asyncio.sleep(0.2)
    say(f"{', '.join(tries)}; after sixteen it would be a dead letter, for `orbitmq dlq ls`")


async def archive_with_spark(client: mq.Client, server: Server, keep: Path) -> None:
    title("A streaming archive, on Spark")
    from orbitmq.clock import SystemClock
    from orbitmq.spark.archive import Archive
    from orbitmq.spark.chart_page import html_page
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
    )  # Spark's calls block; the client lives on this loop
    spark = await loop.run_in_executor(threads, lambda: start_session("orbitmq demo"))
    FIGURES["seconds for Spark to start"] = f"{time.perf_counter() - started:.1f}"
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
        (keep / "payments.html").write_text(html_page(statistics_page(found)))
        FIGURES["messages archived, each once"] = f"{archive.summary.rows:,}"
        FIGURES["the picture"] = str(keep / "payments.html")
        say(f"the archive is in {lake}, its charts in {keep / 'payments.html'}")
    finally:
        await loop.run_in_executor(threads, spark.stop)
        threads.shutdown()


def read_the_files(folder: Path) -> None:
    title("Look at the files")
    store = next(path.parent for path in folder.rglob("commitlog") if path.is_dir())
    with StoreReader(store) as reader:
        say(
            f"the broker has stopped {'cleanly' if reader.is_clean else 'badly'}; its store, in Apache's own format, still holds:"
        )
        for topic in (TOPIC, "Readings"):
            count = sum(queue.max_offset - queue.min_offset for queue in reader.queues(topic))
            say(f"   {topic:10} {count:>6,} messages")


def sum_up(started: float) -> None:
    print("\nIn figures")
    FIGURES["seconds in all"] = f"{time.perf_counter() - started:.1f}"
    for what, figure in FIGURES.items():
        say(f"{what:34} {figure}")


def title(text: str) -> None:
    print(f"\n{next(STEPS)}. {text}")


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
    wanted = parser.parse_args()
    if not wanted.no_spark and find_spec("pyspark") is None:
        parser.error("Spark is not installed here (pip install '.[spark]'); --no-spark leaves it out")
    return wanted


if __name__ == "__main__":
    wanted = arguments()
    if wanted.keep:
        wanted.keep.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(wanted.keep, with_spark=not wanted.no_spark))
