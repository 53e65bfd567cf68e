"""OrbitMQ: Apache RocketMQ, whole, in Python.

    import orbitmq as mq

    async with mq.connect("127.0.0.1:9876") as client:
        async with client.producer(group="orders") as producer:
            await producer.send("Orders", b"hello", tag="new")

Names are loaded when first used, so importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from orbitmq.client.app import App
    from orbitmq.client.client import Client, connect
    from orbitmq.client.codecs import Codec, JsonCodec
    from orbitmq.client.consumer import Consumer
    from orbitmq.client.fetching import Fetched
    from orbitmq.client.filters import Sql
    from orbitmq.client.hooks import ConsumeHook, Consuming, Recall, SendHook, Sending, TransactionEnd
    from orbitmq.client.lease_consumer import LeaseConsumer
    from orbitmq.client.leased import LeasedMessage
    from orbitmq.client.producer import Producer
    from orbitmq.client.pull_consumer import PullConsumer
    from orbitmq.client.receipts import Receipt, SendStatus
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.telemetry import OpenTelemetry
    from orbitmq.client.trace import Tracer
    from orbitmq.client.transactions import Transaction, TransactionProducer
    from orbitmq.errors import (
        AlreadyClosed,
        CallTimeout,
        ConfigError,
        ConnectFailed,
        ConnectionLost,
        MessageError,
        OrbitError,
        RequestFailed,
        RetryLater,
        TransportError,
    )
    from orbitmq.message.message import Message, QueueRef
    from orbitmq.protocol.signing import Credentials

_HOMES = {
    "App": "orbitmq.client.app",
    "Client": "orbitmq.client.client",
    "connect": "orbitmq.client.client",
    "Codec": "orbitmq.client.codecs",
    "JsonCodec": "orbitmq.client.codecs",
    "Consumer": "orbitmq.client.consumer",
    "Fetched": "orbitmq.client.fetching",
    "Sql": "orbitmq.client.filters",
    "ConsumeHook": "orbitmq.client.hooks",
    "Consuming": "orbitmq.client.hooks",
    "Recall": "orbitmq.client.hooks",
    "SendHook": "orbitmq.client.hooks",
    "Sending": "orbitmq.client.hooks",
    "TransactionEnd": "orbitmq.client.hooks",
    "LeaseConsumer": "orbitmq.client.lease_consumer",
    "LeasedMessage": "orbitmq.client.leased",
    "Producer": "orbitmq.client.producer",
    "PullConsumer": "orbitmq.client.pull_consumer",
    "ReceivedMessage": "orbitmq.client.received",
    "Receipt": "orbitmq.client.receipts",
    "SendStatus": "orbitmq.client.receipts",
    "OpenTelemetry": "orbitmq.client.telemetry",
    "Tracer": "orbitmq.client.trace",
    "Transaction": "orbitmq.client.transactions",
    "TransactionProducer": "orbitmq.client.transactions",
    "AlreadyClosed": "orbitmq.errors",
    "CallTimeout": "orbitmq.errors",
    "ConfigError": "orbitmq.errors",
    "ConnectFailed": "orbitmq.errors",
    "ConnectionLost": "orbitmq.errors",
    "MessageError": "orbitmq.errors",
    "OrbitError": "orbitmq.errors",
    "RequestFailed": "orbitmq.errors",
    "RetryLater": "orbitmq.errors",
    "TransportError": "orbitmq.errors",
    "Message": "orbitmq.message.message",
    "QueueRef": "orbitmq.message.message",
    "Credentials": "orbitmq.protocol.signing",
}

__all__ = [
    "AlreadyClosed",
    "App",
    "CallTimeout",
    "Client",
    "Codec",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeHook",
    "Consumer",
    "Consuming",
    "Credentials",
    "Fetched",
    "JsonCodec",
    "LeaseConsumer",
    "LeasedMessage",
    "Message",
    "MessageError",
    "OpenTelemetry",
    "OrbitError",
    "Producer",
    "PullConsumer",
    "QueueRef",
    "Recall",
    "Receipt",
    "ReceivedMessage",
    "RequestFailed",
    "RetryLater",
    "SendHook",
    "SendStatus",
    "Sending",
    "Sql",
    "Tracer",
    "Transaction",
    "TransactionEnd",
    "TransactionProducer",
    "TransportError",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'orbitmq' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
