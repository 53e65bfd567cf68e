"""What a message is: values and pure functions, below both storage and protocol.

The modules are the interface: `record` (stored bytes), `properties`, `batch`, `ids`, `tags`, `compression`, `hosts`,
`shares`, `sysflags`; `message` holds the values.
"""

from orbitmq.message.message import Message, QueueRef, StoredMessage

__all__ = ["Message", "QueueRef", "StoredMessage"]
