"""The blocking face of the client: `from orbitmq.sync import connect`. The same names as in `orbitmq`, without asyncio."""

from orbitmq.client.sync import (
    Client,
    Consumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Transaction,
    TransactionProducer,
    connect,
)

__all__ = [
    "Client",
    "Consumer",
    "Producer",
    "PullConsumer",
    "ReceivedMessage",
    "Transaction",
    "TransactionProducer",
    "connect",
]
