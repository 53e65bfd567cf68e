"""An app of two handlers: orders become invoices, invoices are counted. Name servers: $NAMESRV_ADDR, else a local one.

Run it for good with `orbitmq run examples.orders_app:app`; `main` runs it until a few orders went all the way through.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass

import orbitmq as mq

app = mq.App(os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876")


@dataclass
class Order:
    """What the shop sends."""

    id: int
    price: float


@dataclass
class Invoice:
    """What billing makes of it."""

    order: int
    total: float


invoices: dict[int, Invoice] = {}
enough = asyncio.Event()


@app.subscriber("ExampleOrders", group="example-billing", start="earliest", concurrency=8)
async def on_order(order: Order) -> None:
    await app.publish("ExampleInvoices", Invoice(order.id, order.price * 1.2), keys=[str(order.id)])


@app.subscriber("ExampleInvoices", group="example-books", start="earliest")
async def on_invoice(invoice: Invoice) -> None:
    invoices[invoice.order] = invoice  # at least once: the same one may come twice
    if len(invoices) == 5:
        enough.set()


async def main() -> None:
    logging.getLogger("orbitmq").setLevel(logging.ERROR)  # no word about topics that the first message makes
    async with app:
        await asyncio.gather(*(app.publish("ExampleOrders", Order(number, 10.0 * number)) for number in range(1, 6)))
        async with asyncio.timeout(30):
            await enough.wait()
    for number, invoice in sorted(invoices.items()):
        print(f"order {number}: {invoice.total:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
