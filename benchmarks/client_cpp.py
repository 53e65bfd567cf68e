"""The PyPI package rocketmq 0.4.4 (the C++ client) doing what benchmarks/client.py does with ours, as far as it can.

`python client_cpp.py NAME_SERVER TOPIC SECONDS COUNT FULL_TOPIC` sends to TOPIC, consumes COUNT of FULL_TOPIC, and prints one line a cell: `name<TAB>rate<TAB>CPU microseconds of this process for each message`. Its callers are threads. What may
crash the process comes last, so that the other figures are out by then. Run where the package can be imported.
"""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from typing import Any, Final

BODY: Final = b"x" * 1024
BATCH: Final = 32


def figures(count: int, began: float, cpu: float) -> str:
    return f"{count / (time.perf_counter() - began)}\t{(time.process_time() - cpu) / max(count, 1) * 1e6}"


def send_rate(mq: Any, producer: Any, topic: str, callers: int, seconds: float) -> str:
    end = time.perf_counter() + seconds
    counts = [0] * callers

    def call(number: int) -> None:
        while time.perf_counter() < end:
            message = mq.Message(topic)
            message.set_body(BODY)
            producer.send_sync(message)
            counts[number] += 1

    began, cpu = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures(sum(counts), began, cpu)


def async_rate(mq: Any, producer: Any, topic: str, in_flight: int, seconds: float) -> str:
    room = threading.Semaphore(in_flight)
    sent = 0

    def stored(receipt: Any) -> None:
        nonlocal sent
        sent += 1
        room.release()

    began, cpu = time.perf_counter(), time.process_time()
    end = began + seconds
    while time.perf_counter() < end:
        room.acquire()
        message = mq.Message(topic)
        message.set_body(BODY)
        producer.send_async(message, stored, lambda error: room.release())
    for _ in range(in_flight):
        room.acquire(timeout=5)
    return figures(sent, began, cpu)


def batch_rate(mq: Any, producer: Any, topic: str, seconds: float) -> str:
    began, cpu = time.perf_counter(), time.process_time()
    end = began + seconds
    sent = 0
    while time.perf_counter() < end:
        messages = [mq.Message(topic) for _ in range(BATCH)]
        for message in messages:
            message.set_body(BODY)
        producer.send_batch(messages)
        sent += BATCH
    return figures(sent, began, cpu)


def consume_rate(mq: Any, name_server: str, topic: str, count: int) -> str:
    done = threading.Event()
    handled = 0
    began = cpu = 0.0
    lock = threading.Lock()

    def handle(message: Any) -> None:
        nonlocal handled, began, cpu
        with lock:
            if not handled:
                began, cpu = time.perf_counter(), time.process_time()
            handled += 1
            if handled >= count:
                done.set()

    consumer = mq.PushConsumer(f"bench-cpp-{time.time_ns()}")
    consumer.set_namesrv_addr(name_server)
    consumer.set_thread_count(20)
    consumer.subscribe(topic, handle)
    consumer.start()
    done.wait(120)
    found = figures(handled, began, cpu)
    consumer.shutdown()
    return found


def main() -> None:
    name_server, topic, seconds, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    mq = import_module("rocketmq.client")
    producer = mq.Producer("bench-cpp")
    producer.set_namesrv_addr(name_server)
    producer.start()
    send_rate(mq, producer, topic, 16, seconds / 4)
    for cell, callers in (("1 caller", 1), ("64 callers", 64)):
        print(f"{cell}\t{send_rate(mq, producer, topic, callers, seconds)}", flush=True)
    print(f"consume one by one\t{consume_rate(mq, name_server, sys.argv[5], count)}", flush=True)
    print(f"256 in flight\t{async_rate(mq, producer, topic, 256, seconds)}", flush=True)
    print(f"batches of 32\t{batch_rate(mq, producer, topic, seconds)}", flush=True)
    producer.shutdown()


if __name__ == "__main__":
    main()
