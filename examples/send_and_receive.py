"""The shortest whole program: send one message, receive it. Start a server first: `orbitmq dev`."""

from __future__ import annotations

import asyncio
import sys

import orbitmq as mq


async def main(name_server: str) -> None:
    async with mq.connect(name_server) as client:
        async with client.producer(group="hello-producer") as producer:
            receipt = await producer.send("Hello", b"hello, world", tag="greeting")
            print(f"sent {receipt.message_id}")
        async with client.consumer("Hello", group="hello-consumer", start="earliest") as consumer:
            async for message in consumer:
                async with message.process():
                    print(f"received {message.body.decode()!r}")
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
