"""Java beans as structs that forget nothing: members we do not know are kept and written back.

A newer broker of either kind may have written them; a table that passes through our hands must not lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from orbitmq.errors import BodyError

T = TypeVar("T", bound="JavaObject")


class JavaObject(msgspec.Struct, rename="camel", kw_only=True):
    """Members are named in Java's way on disk; None is a member that is not there."""

    unknown: dict[str, Any] = msgspec.field(default_factory=dict)


def read_object(shape: type[T], members: Mapping[str, Any]) -> T:
    """Raises BodyError if a known member has a value of another kind."""
    types = _member_types(shape)
    values: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for wire_name, value in members.items():
        if wire_name not in types:
            unknown[wire_name] = value
        elif value is not None:
            name, type_ = types[wire_name]
            values[name] = _read(type_, value, wire_name)
    try:
        return shape(**values, unknown=unknown)
    except TypeError as error:
        raise BodyError(f"{shape.__name__}: {error}") from error


def read_sent(shape: type[T], members: Mapping[str, Any]) -> T:
    """As `read_object`, for what came over the network: its numbers fit Java's, and all of it can be written again."""
    value = read_object(shape, members)
    for field in msgspec.structs.fields(shape):
        number = getattr(value, field.name)
        if type(number) is int and not -(2**31) <= number < 2**31:
            raise BodyError(f"{field.encode_name}={number} is not a number of Java's")
    try:
        to_json(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BodyError(f"{shape.__name__} holds what is no JSON: {error}") from None
    return value


def write_object(value: JavaObject) -> dict[str, Any]:
    """The members in alphabetical order, as Java writes them."""
    names = {wire_name: name for wire_name, (name, _) in _member_types(type(value)).items()}
    members = {wire_name: _write(getattr(value, name)) for wire_name, name in names.items()}
    return dict(sorted({**value.unknown, **{k: v for k, v in members.items() if v is not None}}.items()))


def to_json(value: JavaObject) -> bytes:
    """Compact, for the wire."""
    return msgspec.json.encode(write_object(value))


@cache
def _member_types(shape: type[JavaObject]) -> dict[str, tuple[str, Any]]:
    hints = get_type_hints(shape)
    return {
        field.encode_name: (field.name, hints[field.name])
        for field in msgspec.structs.fields(shape)
        if field.name != "unknown"
    }


def _read(shape: Any, value: Any, wire_name: str) -> Any:
    if _is_plain(shape):
        try:
            return msgspec.convert(value, shape, strict=False, str_keys=True)
        except msgspec.ValidationError as error:
            raise BodyError(f"{wire_name}: {error}") from error
    inner = get_args(shape)
    if get_origin(shape) is dict and isinstance(value, Mapping):
        pairs = value.items()
        return {_read(inner[0], key, wire_name): _read(inner[1], item, f"{wire_name}.{key}") for key, item in pairs}
    if get_origin(shape) is list and isinstance(value, list):
        return [_read(inner[0], item, wire_name) for item in value]
    for object_shape in inner or (shape,):
        if isinstance(value, Mapping) and not _is_plain(object_shape):
            return read_object(object_shape, value)
    raise BodyError(f"{wire_name}: {type(value).__name__} is not what belongs there")


@cache
def _is_plain(shape: Any) -> bool:
    """Whether no JavaObject is in it, so that msgspec can read it at once."""
    if isinstance(shape, type) and issubclass(shape, JavaObject):
        return False
    return all(_is_plain(inner) for inner in get_args(shape))


def _write(value: Any) -> Any:
    if isinstance(value, JavaObject):
        return write_object(value)
    if isinstance(value, dict):
        return {key: _write(item) for key, item in value.items()}
    return [_write(item) for item in value] if isinstance(value, list) else value
