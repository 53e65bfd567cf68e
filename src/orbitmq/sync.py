"""The blocking face of the client: `from orbitmq.sync import connect`. The same names as in `orbitmq`, without asyncio."""

from orbitmq.client.sync import (
    Client,
    Consumer,
    LeaseConsumer,
    Producer,
    PullConsumer,
    TransactionProducer,
    connect,
)
from orbitmq.client.sync_messages import LeasedMessage, ReceivedMessage, Transaction

__all__ = [
    "Client",
    "Consumer",
    "LeaseConsumer",
    "LeasedMessage",
    "Producer",
    "PullConsumer",
    "ReceivedMessage",
    "Transaction",
    "TransactionProducer",
    "connect",
]
