"""Custom fields as texts: the map of strings inside a JSON header, read tolerantly."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orbitmq.errors import HeaderError

_decode: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def text_fields(raw: bytes | msgspec.Raw) -> dict[str, str]:
    """Fields should be strings, but C++ and Node clients send numbers, booleans and nulls too."""
    try:
        values = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderError(f"extFields is not an object of texts: {error}") from None
    return {
        key: value if type(value) is str else _as_text(value)
        for key, value in (values or {}).items()
        if value is not None
    }


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()
