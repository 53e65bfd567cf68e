"""Bodies from values and back: bytes and text as they are, everything else as JSON, or whatever a codec of yours makes of it.

await p.send("Orders", Order(id=7))            dataclasses, msgspec structs, pydantic models, dicts, lists
async def on_order(order: Order) -> None: ...  the handler's annotation says what the body becomes
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from orbitmq.errors import MessageError


class Codec(Protocol):
    """Turns a value into a body, and a body into a value of the type that a handler asks for."""

    def encode(self, value: object) -> bytes:
        """The body; MessageError when the value cannot be one."""
        ...

    def decode(self, body: bytes, wanted: Any) -> Any:
        """The value; MessageError when the body is none of that type."""
        ...


class JsonCodec:
    """Bytes and text as they are; dataclasses, msgspec structs, pydantic models and plain values as JSON."""

    def encode(self, value: object) -> bytes:
        """The body; MessageError when the value has no form as bytes, text or JSON."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            return _text(value)
        to_json = getattr(value, "model_dump_json", None)  # pydantic
        try:
            return _text(str(to_json())) if callable(to_json) else msgspec.json.encode(value)
        except (TypeError, ValueError) as error:
            raise MessageError(
                f"a value of type {type(value).__name__} cannot be sent as JSON: {error}",
                hint="send bytes, or give the producer a codec of your own",
            ) from error

    def decode(self, body: bytes, wanted: Any) -> Any:
        """The value; MessageError when the body is none of that type."""
        if wanted is bytes:
            return body
        try:
            if wanted is str:
                return body.decode()
            validate = getattr(wanted, "model_validate_json", None)  # pydantic
            return validate(body) if callable(validate) else msgspec.json.decode(body, type=wanted)
        except (msgspec.MsgspecError, ValueError) as error:
            name = getattr(wanted, "__name__", str(wanted))
            raise MessageError(f"the body is not a {name}: {error}", hint="what did its producer send?") from error


def _text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise MessageError(
            f"a text cannot be sent as UTF-8: {error}", hint='text.encode(errors="surrogateescape") makes bytes of it'
        ) from error


JSON = JsonCodec()
