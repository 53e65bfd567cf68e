"""What all headers share: typed reading from the protocol's texts, and writing back to them.

Every value crosses the wire as text ("4", "true"). Reading first takes msgspec's quick lax path; only when that fails is
the header read field by field with the tolerance that Java's clients have come to rely on.

Java: CommandCustomHeader, RemotingCommand.decodeCommandCustomHeader
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Self, get_args

import msgspec

from orbitmq.errors import HeaderError
from orbitmq.protocol.fields import text_fields

if TYPE_CHECKING:
    from collections.abc import Mapping


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all headers. Field names are Java's in snake_case; one without a default is mandatory."""

    @classmethod
    def from_json(cls, raw: bytes | msgspec.Raw) -> Self:
        try:
            return _decoder(cls).decode(raw)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls.from_fields(text_fields(raw))

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        try:
            return msgspec.convert(_tolerated(cls, fields), cls, strict=False)
        except msgspec.ValidationError as error:
            raise HeaderError(f"{cls.__name__}: {error}") from None

    def to_fields(self) -> dict[str, str]:
        """The texts to send; absent values are left out."""
        names = self.__struct_encode_fields__
        return {
            name: value if type(value) is str else _text(value)
            for name, value in zip(names, msgspec.structs.astuple(self), strict=True)
            if value is not None
        }


def _text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str.__str__(value) if isinstance(value, str) else str(value)  # members of enums would be their names


@cache
def _decoder(header_type: type[Header]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(header_type, strict=False)


def _tolerated(header_type: type[Header], fields: Mapping[str, str]) -> dict[str, str]:
    """Java's leniency: a boolean is true only as `true`, and an empty number or boolean is an absent one."""
    kinds = _kinds(header_type)
    tolerated = {}
    for name, text in fields.items():
        kind = kinds.get(name, str)
        if kind is bool:
            text = "true" if text.lower() == "true" else "false"
        elif text == "" and kind is not str:
            continue
        tolerated[name] = text
    return tolerated


@cache
def _kinds(header_type: type[Header]) -> dict[str, type]:
    kinds = {}
    for field in msgspec.structs.fields(header_type):
        options = [option for option in get_args(field.type) if option is not type(None)]
        kinds[field.encode_name] = options[0] if options else field.type
    return kinds
