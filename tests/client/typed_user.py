"""A user's module that uses the whole public face: never run, but it must pass `mypy --strict` and pyright (strict)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orbitmq as mq
from orbitmq import sync


@dataclass
class Order:
    id: int


def use(*values: object) -> None:
    """As a user's program would."""


app = mq.App("127.0.0.1:9876")


@app.subscriber("Orders", group="g", concurrency=8)
async def on_order(order: Order) -> None:
    await app.publish("Out", order)


@app.responder("Prices", group="g")
async def price_of(order: Order) -> Order:
    return Order((await app.request("Other", order, timeout=1)).flag)


async def handler(m: mq.ReceivedMessage) -> None:
    use(m.body, m.tag, m.keys, m.queue.broker_name)


async def handler2(m: mq.Message) -> None:
    use(m.body)


def blocking(m: mq.ReceivedMessage) -> None:
    raise mq.RetryLater(delay_level=3)


async def many(ms: list[mq.ReceivedMessage]) -> None: ...


async def is_paid(order: Order) -> bool | None:
    return order.id == 1


async def main() -> None:
    async with mq.connect("127.0.0.1:9876", credentials=("a", "b"), tls=True) as c:
        async with c.producer(group="orders", compression="lz4") as p:
            r = await p.send("Orders", b"hi", tag="new", keys=["42"], properties={"k": "v"})
            use(r.message_id.lower(), r.queue.queue_id + 1, r.status is mq.SendStatus.STORED)
            await p.send("Orders", Order(1), order_key="x", delay=timedelta(minutes=3))
            rs = await p.send_batch("Orders", [b"a", b"b"])
            use(rs[0].queue_offset)
            await p.send_oneway("Logs", b"..")
            use((await p.request("Prices", b"..", timeout=3)).body.decode())
        async with c.transaction_producer("pay", check=is_paid) as tp, tp.begin("Orders", Order(1), tag="x") as tx:
            use(tx.receipt.message_id.lower())
            tx.commit()
        async with c.consumer("Orders", group="g1", filter="new || paid", start="earliest") as sub:
            async for m in sub:
                async with m.process():
                    use(m.body.decode())
        async with c.consumer(
            {"A": "x", "B": mq.Sql("a > 1")}, group="g", handler=handler, start=datetime.now(UTC)
        ) as s2:
            await s2.seek(s2.assigned[0], "latest")
        async with (
            c.consumer("A", group="g", handler=handler2),
            c.consumer("A", group="g", handler=blocking),
            c.consumer("A", group="g", handler=many, batch_size=3),
        ):
            pass
        async with c.lease_consumer("Orders", group="g", lease=timedelta(minutes=5)) as leases:
            for lm in await leases.fetch(max=10, wait=1):
                await lm.extend(timedelta(minutes=1))
                await lm.ack()
            async for lm in leases:
                async with lm.process():
                    use(lm.body.decode(), lm.leased_until.isoformat())
        async with c.pull_consumer(group="etl") as pc:
            for q in await pc.queues("Orders"):
                batch = await pc.fetch(q, offset=0, max=256)
                for msg in batch:
                    use(msg.body, batch.next_offset + 1)


def blocking_main() -> None:
    with sync.connect("127.0.0.1:9876") as c:
        with c.producer(group="orders") as p:
            r = p.send("Orders", b"hi", tag="new")
            use(r.message_id.lower())
        with c.transaction_producer("pay", check=lambda message: None) as tp, tp.begin("Orders", b"x") as tx:
            tx.roll_back()
        with c.consumer("Orders", group="g", start="earliest") as sub:
            for m in sub:
                with m.process():
                    use(m.body.decode(), m.attempt + 1)
        with c.lease_consumer("Orders", group="g") as leases:
            leases.ack(leases.fetch(wait=1))
            for lm in leases:
                with lm.process():
                    use(lm.body.decode())
        with c.pull_consumer(group="etl") as pc:
            use(pc.fetch(pc.queues("T")[0], offset=1).next_offset + 1)
    try:
        asyncio.run(main())
    except mq.OrbitError as e:
        use(e.code + 1, e.hint.lower())
