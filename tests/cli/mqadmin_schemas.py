"""docs/mqadmin-schemas.json: what every verb of `orbitmq mqadmin` prints with `--output json`, and whether it does.

Verbs have no structs: their fields are the original's columns. So the file is made from what they print, on a server of ours
(test_mqadmin.py, test_acl.py) and on Apache's (tests/interop/test_our_mqadmin.py), where the same tests then hold them to it:

    export ORBITMQ_VERB_SAMPLES=/tmp/samples.jsonl
    pytest tests/cli/test_mqadmin.py tests/cli/test_acl.py; pytest tests/interop/test_our_mqadmin.py
    python -m tests.cli.mqadmin_schemas
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.cli.field_tables import DOCS
from tests.cli.schemas import problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERB_SCHEMAS: Final = DOCS / "mqadmin-schemas.json"
_MANY_FIELDS: Final = 25  # a table of settings or figures, whose keys are the server's
_NO_FIELD: Final = re.compile(
    r"[\d.]+(:\d+)?|[%{].*|[A-Z_]+"
)  # an address, a number, a retry topic, a queue, a message's property
_KINDS: Final[dict[type, str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}

SAMPLES: Final = "ORBITMQ_VERB_SAMPLES"
# What the tests call their brokers, clusters, topics, groups, users: where such a word is a key, it is no field.
_NAMES: Final = frozenset(
    {"test", "broker-a", "DefaultCluster", "cluster-a", "Made", "Busy", "Orders", "Readers", "MadeGroup", "ListedGroup",
     "Online", "Producers", "Writers", "bob", "rooted", "anna", "emma", "User:bob", "User:anna", "User:emma",
     "a", "b", "10.0.0.1", "10.0.0.2"}
)  # fmt: skip


def check_verb(verb: str, value: Any) -> None:
    if SAMPLES in os.environ:
        with Path(os.environ[SAMPLES]).open("a") as file:
            file.write(json.dumps([verb, value]) + "\n")
        return
    schema = json.loads(VERB_SCHEMAS.read_text())["verbs"][verb]
    assert list(problems(value, schema)) == [], f"not as documented: orbitmq mqadmin {verb} --output json"


def schema_for(samples: Sequence[Any]) -> dict[str, Any]:
    """What all these have in common. Keys that are names of somebody's, such as a broker's, are not fields."""
    there = [sample for sample in samples if sample is not None]
    if not there:
        return {}  # was null whenever we looked
    alternatives: list[dict[str, Any]] = [
        {"type": kind} for kind in sorted({_KINDS[type(one)] for one in there if type(one) in _KINDS})
    ]
    if {"type": "number"} in alternatives:
        alternatives = [one for one in alternatives if one != {"type": "integer"}]
    if tables := [sample for sample in there if isinstance(sample, dict)]:
        alternatives.append(_of_tables(tables))
    if lists := [sample for sample in there if isinstance(sample, list)]:
        alternatives.append({"type": "array", "items": schema_for([one for some in lists for one in some])})
    if len(there) < len(samples):
        alternatives.append({"type": "null"})
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _of_tables(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for table in tables for key in table))
    if not keys:
        return {"type": "object"}
    is_open = len(keys) > _MANY_FIELDS and all(isinstance(value, str) for table in tables for value in table.values())
    if is_open or any(key in _NAMES or _NO_FIELD.fullmatch(key) for key in keys):
        values = [value for table in tables for value in table.values()]
        return {"type": "object", "additionalProperties": schema_for(values)}
    return {
        "type": "object",
        "properties": {key: schema_for([table[key] for table in tables if key in table]) for key in keys},
        "required": [key for key in keys if all(key in table for table in tables)],
    }


def schemas_text(samples: Iterable[tuple[str, Any]]) -> str:
    by_verb: dict[str, list[Any]] = {}
    for verb, value in samples:
        by_verb.setdefault(verb, []).append(value)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "verbs": {verb: schema_for(values) for verb, values in sorted(by_verb.items())},
    }
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    lines = Path(os.environ[SAMPLES]).read_text().splitlines()
    VERB_SCHEMAS.write_text(schemas_text(json.loads(line) for line in lines))
