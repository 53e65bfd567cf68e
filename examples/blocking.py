"""The client without asyncio: send, receive, and read at one's own pace. Name servers: $NAMESRV_ADDR, else a local one."""

from __future__ import annotations

import os

from orbitmq.sync import connect


def main() -> None:
    with connect(os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876") as client:
        with client.producer(group="example-blocking") as producer:
            for number in range(3):
                producer.send("ExampleBlocking", f"message {number}", order_key="one queue")
        bodies: list[str] = []
        with client.consumer("ExampleBlocking", group="example-blocking-readers", start="earliest") as consumer:
            for message in consumer:
                with message.process():
                    bodies.append(message.body.decode())
                if len(bodies) == 3:
                    break
        print(", ".join(bodies))
        with client.pull_consumer(group="example-blocking-etl") as reader:
            kept = [reader.max_offset(queue) for queue in reader.queues("ExampleBlocking")]
            print(f"{sum(kept)} messages in {len(kept)} queues")


if __name__ == "__main__":
    main()
