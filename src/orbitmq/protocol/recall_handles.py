"""The text that takes a timer message back: URL-safe base64 of `v1 topic broker at-ms unique-key`. Java: RecallMessageHandle"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_VERSION: Final = "v1"
_HANDLE_PARTS: Final = 5


class RecallHandle(NamedTuple):
    """Names a timer message: what a receipt carries, and what takes the message back."""

    topic: str
    broker_name: str
    at_ms: int
    unique_key: str

    def text(self) -> str:
        parts = (_VERSION, self.topic, self.broker_name, str(self.at_ms), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def read_handle(text: str) -> RecallHandle:
    """RequestFailed when it is none."""
    try:
        padded = text + "=" * (-len(text) % 4)  # Java reads it without its padding, too
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < _HANDLE_PARTS or parts[0] != _VERSION:
        raise RequestFailed(
            ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", hint="take it from the receipt of the message"
        )
    _, topic, broker_name, at_ms, unique_key = parts[:_HANDLE_PARTS]
    return RecallHandle(topic, broker_name, int(at_ms) if _NUMBER.fullmatch(at_ms) else -1, unique_key)
