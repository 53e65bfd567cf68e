"""Whether what a command prints is what docs/cli-schemas.json says: as much of JSON Schema as that file uses.

Stricter than the standard in one thing: a field that the schema does not name is a problem. Fields are a promise in both directions.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tests.cli.field_tables import SCHEMAS, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

_WHOLE: Final[dict[str, Any]] = json.loads(SCHEMAS.read_text())
DOCUMENTED: Final[dict[str, Any]] = _WHOLE["commands"]
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN: Final = {
    "$ref", "anyOf", "type", "format", "enum", "items", "properties", "required", "additionalProperties",
    "title", "description", "default",
}  # fmt: skip
_DEFINITIONS: Final = "#/$defs/"


def check(name: str, value: Any) -> None:
    """`value` is what the command documented as `name` printed with `-o json`."""
    assert list(problems(value, DOCUMENTED[name])) == [], f"not as documented: orbitmq {name}"


def printed_value(name: str, text: str) -> Any:
    return [json.loads(line) for line in text.splitlines()] if name in STREAMS else json.loads(text)


def problems(value: Any, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    unknown = schema.keys() - _KNOWN
    assert not unknown, f"{where}: the checker does not know {unknown}"
    if "$ref" in schema:
        yield from problems(value, _WHOLE["$defs"][schema["$ref"].removeprefix(_DEFINITIONS)], where)
    if "anyOf" in schema:
        attempts = [list(problems(value, one, where)) for one in schema["anyOf"]]
        if all(attempts):
            yield from attempts[0]
    kind = schema.get("type")
    if kind is not None and not _is_a(value, kind):
        yield f"{where}: {value!r} is no {kind}"
    elif kind == "object":
        yield from _object_problems(value, schema, where)
    elif kind == "array":
        for index, one in enumerate(value):
            yield from problems(one, schema["items"], f"{where}[{index}]")
    elif schema.get("format") == "date-time" and datetime.fromisoformat(value).tzinfo is None:
        yield f"{where}: {value} does not say its zone"
    if value not in schema.get("enum", [value]):
        yield f"{where}: {value!r} is none of {schema['enum']}"


def _object_problems(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties", not properties)
    yield from (f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, one in value.items():
        if name in properties:
            yield from problems(one, properties[name], f"{where}.{name}")
        elif isinstance(others, dict):
            yield from problems(one, others, f"{where}.{name}")
        elif not others:
            yield f"{where}: {name} is not documented"


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
