"""What all bodies share: reading fastjson's dialect with tolerance, writing plain compact JSON or the old dialect.

Reading takes msgspec's quick path first; what that refuses (bare integer keys, nulls for lists, stray commas, ...) is read
again by the tolerant reader. Writing leaves nulls out, as Java does. `standard=False` writes integer map keys unquoted,
which clients before 4.9.4 expect.

Java: RemotingSerializable
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all bodies. Field names are Java's in snake_case."""

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        if b"$" in data and b"$ref" in data:  # the quick path would take a reference for an object with nothing in it
            return cls._from_dialect(data)
        try:
            return _decoder(cls).decode(data)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls._from_dialect(data)

    @classmethod
    def _from_dialect(cls, data: bytes) -> Self:
        try:
            return msgspec.convert(_without_nulls(fastjson.loads(data)), cls, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise BodyError(f"{cls.__name__}: {error}") from None

    def to_json(self, *, standard: bool = True) -> bytes:
        plain = _without_nulls(msgspec.to_builtins(self))
        return msgspec.json.encode(plain) if standard else fastjson.dumps(plain, bare_int_keys=True)


@cache
def _decoder(body_type: type[Body]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body_type, strict=False)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
