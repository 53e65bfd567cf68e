"""Transactions, requests, delays and leases in one small program. Name servers: $NAMESRV_ADDR, else a local one."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import orbitmq as mq

NAME_SERVERS = os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876"

app = mq.App(NAME_SERVERS)


@app.responder("ExamplePrices", group="example-pricing", start="earliest")
async def price_of(article: dict[str, str]) -> dict[str, int]:
    return {"cents": 100 * len(article["name"])}


async def was_paid(body: str) -> bool | None:
    """Asked by a broker that has not heard how a transaction ended."""
    return None


async def main() -> None:
    async with mq.connect(NAME_SERVERS) as client, client.producer(group="example-setup") as producer:
        await producer.send("ExamplePrices", {"name": "the first message creates a topic"})
    async with app, mq.connect(NAME_SERVERS) as client:
        reply = await app.request("ExamplePrices", {"name": "tea"}, timeout=20)
        print("asked:", reply.body.decode())

        async with client.transaction_producer(group="example-payers", check=was_paid) as payer:
            async with payer.begin("ExamplePayments", "paid") as transaction:
                transaction.commit()
            async with payer.begin("ExamplePayments", "not paid") as transaction:
                transaction.roll_back()
        async with client.producer(group="example-reminders") as producer:
            await producer.send("ExamplePayments", "reminder", delay=timedelta(seconds=1))

        bodies: list[str] = []
        async with client.lease_consumer("ExamplePayments", group="example-workers", start="earliest") as consumer:
            async for message in consumer:
                async with message.process():
                    bodies.append(message.body.decode())
                if len(bodies) == 2:
                    break
        print("leased:", ", ".join(bodies))


if __name__ == "__main__":
    asyncio.run(main())
