"""Apache's C++ client, driven line by line, as interop/src/main/java/orbitmq/Client.java drives the Java one.

`python client.py FOLDER`, FOLDER holding the PyPI package rocketmq 0.4.4: the core of rocketmq-client-cpp behind its C interface.
A request is one line {"id": 1, "verb": "Send", ...}; its answer is one line {"id": 1, "result": ...} or {"id": 1, "error": ...}.
Requests run side by side, so answers come in any order. The end of standard input closes everything that is open.
"""

import base64
import ctypes
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

sys.path.insert(0, sys.argv[1])
mq: Any = import_module("rocketmq.client")
dll: Any = import_module("rocketmq.ffi").dll
MessageModel: Any = import_module("rocketmq.ffi").MessageModel

Arguments = dict[str, Any]

# The library's three seconds pass quickly on a machine where every core has other work too.
_SEND_TIMEOUT_MS: Final = 20_000
_STATUSES: Final = ("SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
_CHANNEL: Final = "ALIYUN"  # what C++ signs with besides the keys
# The interface names no way to list a message's properties: these are what the tests ask for.
_PROPERTIES: Final = ("n", "UNIQ_KEY", "ORIGIN_MESSAGE_ID")

opened: dict[str, Any] = {}
verbs: dict[str, Callable[[Arguments], Any]] = {}


def verb(run: Callable[[Arguments], Any]) -> Callable[[Arguments], Any]:
    verbs["".join(word.capitalize() for word in run.__name__.split("_"))] = run
    return run


class Inbox:
    """What a consumer has received, in order of arrival, kept until asked for."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._arrived = threading.Condition()

    def put(self, message: dict[str, Any]) -> None:
        with self._arrived:
            self._messages.append(message)
            self._arrived.notify_all()

    def take(self, count: int, seconds: float) -> list[dict[str, Any]]:
        with self._arrived:
            self._arrived.wait_for(lambda: len(self._messages) >= count, seconds)
            taken, self._messages = self._messages, []
            return taken


class PushConsumer:
    def __init__(self, library: Any, inbox: Inbox) -> None:
        self.library = library
        self.inbox = inbox

    def shutdown(self) -> None:
        self.library.shutdown()


class PullConsumer:
    def __init__(self, library: Any, topic: str) -> None:
        self.library = library
        self.topic = topic

    def shutdown(self) -> None:
        self.library.shutdown()


def _instance(arguments: Arguments) -> bytes:
    """One for each, so that two consumers of a group are two members."""
    return f"{os.getpid()}-{arguments['name']}".encode()


def _connect(library: Any, arguments: Arguments) -> None:
    library.set_namesrv_addr(arguments["nameServer"])
    if arguments.get("accessKey"):
        library.set_session_credentials(arguments["accessKey"], arguments["secretKey"], _CHANNEL)


@verb
def open_producer(arguments: Arguments) -> None:
    producer = mq.Producer(arguments["group"], timeout=_SEND_TIMEOUT_MS)
    _connect(producer, arguments)
    dll.SetProducerInstanceName(producer._handle, _instance(arguments))
    producer.start()
    opened[arguments["name"]] = producer


def _messages(arguments: Arguments) -> list[Any]:
    made = []
    for wanted in arguments["messages"]:
        message = mq.Message(arguments["topic"])
        body = base64.b64decode(wanted["bytes"]) if "bytes" in wanted else wanted["text"].encode()
        dll.SetByteMessageBody(message, body, len(body))
        if wanted.get("tag"):
            message.set_tags(wanted["tag"])
        if wanted.get("keys"):
            message.set_keys(wanted["keys"])
        if wanted.get("delayLevel"):
            message.set_delay_time_level(wanted["delayLevel"])
        for key, value in wanted.get("properties", {}).items():
            message.set_property(key, value)
        made.append(message)
    return made


def _receipt(result: Any) -> dict[str, Any]:
    return {"status": _STATUSES[result.status], "id": result.msg_id, "offset": result.offset}


@verb
def send(arguments: Arguments) -> list[dict[str, Any]]:
    """One receipt a message; none for one-way sends, one for a batch."""
    producer, messages = opened[arguments["name"]], _messages(arguments)
    match arguments["mode"]:
        case "sync" if arguments.get("orderKey"):
            number = zlib.crc32(arguments["orderKey"].encode()) & 0xFFFF
            return [_receipt(producer.send_orderly(message, number)) for message in messages]
        case "sync":
            return [_receipt(producer.send_sync(message)) for message in messages]
        case "async":
            return _send_async(producer, messages)
        case "oneway":
            for message in messages:
                producer.send_oneway(message)
            return []
        case "batch":
            return [_receipt(producer.send_batch(messages))]
    raise ValueError(f"unknown mode {arguments['mode']}")


def _send_async(producer: Any, messages: Iterable[Any]) -> list[dict[str, Any]]:
    receipts: list[dict[str, Any]] = []
    wanted = 0
    done = threading.Condition()

    def finish(receipt: dict[str, Any]) -> None:
        with done:
            receipts.append(receipt)
            done.notify_all()

    for message in messages:
        wanted += 1
        producer.send_async(message, lambda result: finish(_receipt(result)), lambda e: finish({"error": str(e)}))
    with done:
        if not done.wait_for(lambda: len(receipts) == wanted, _SEND_TIMEOUT_MS / 1000):
            raise TimeoutError(f"{len(receipts)} of {wanted} callbacks came")
    return receipts


def _as_json(message: Any) -> dict[str, Any]:
    properties = {key: value.decode() for key in _PROPERTIES if (value := message.get_property(key))}
    body = ctypes.string_at(message.body) if isinstance(message.body, int) else message.body
    return {
        "topic": message.topic,
        "id": properties.get("UNIQ_KEY", message.id),
        "broker": "",
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tag": message.tags.decode(),
        "keys": message.keys.decode(),
        "attempt": message.reconsume_times,
        "properties": properties,
        "bytes": base64.b64encode(body).decode(),
    }


class FailedOnPurpose(Exception):
    """What the library counts as "consume it later"."""


@verb
def open_push_consumer(arguments: Arguments) -> None:
    model = MessageModel.BROADCASTING if arguments.get("broadcasting") else MessageModel.CLUSTERING
    consumer = mq.PushConsumer(arguments["group"], orderly=bool(arguments.get("orderly")), message_model=model)
    _connect(consumer, arguments)
    consumer.set_instance_name(_instance(arguments))
    inbox = Inbox()

    def handle(message: Any) -> None:
        inbox.put(_as_json(message))
        if message.reconsume_times < arguments.get("failFirst", 0):
            raise FailedOnPurpose

    consumer.subscribe(arguments["topic"], handle, arguments.get("tags") or "*")
    consumer.start()
    opened[arguments["name"]] = PushConsumer(consumer, inbox)


@verb
def received(arguments: Arguments) -> list[dict[str, Any]]:
    inbox: Inbox = opened[arguments["name"]].inbox
    return inbox.take(arguments["count"], arguments["timeoutMillis"] / 1000)


@verb
def open_pull_consumer(arguments: Arguments) -> None:
    consumer = mq.PullConsumer(arguments["group"])
    _connect(consumer, arguments)
    consumer.start()
    opened[arguments["name"]] = PullConsumer(consumer, arguments["topic"])


@verb
def poll(arguments: Arguments) -> list[dict[str, Any]]:
    consumer = opened[arguments["name"]]
    deadline = time.monotonic() + arguments["timeoutMillis"] / 1000
    found: list[dict[str, Any]] = []
    while len(found) < arguments["count"] and time.monotonic() < deadline:
        found += [_as_json(message) for message in consumer.library.pull(consumer.topic)]
    return found


@verb
def close(arguments: Arguments) -> None:
    opened.pop(arguments["name"]).shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints is no answer
    writing = threading.Lock()

    def run(request: Arguments) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            answer["result"] = verbs[request["verb"]](request)
        except Exception as error:  # whatever it was, the caller waits for an answer
            answer["error"] = {"type": type(error).__name__, "message": str(error)}
        with writing:
            print(json.dumps(answer), file=answers)

    for line in sys.stdin:
        threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
    for name in list(opened):
        close({"name": name})
    answers.flush()
    os._exit(0)  # some of its threads do not end


if __name__ == "__main__":
    main()
