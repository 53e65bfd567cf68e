"""Writes docs/cli-fields.md and docs/cli-schemas.json from the structs that commands print.

    python -m tests.cli.field_tables

`test_reference.py` sees to it that the files are up to date.
"""

from __future__ import annotations

import inspect
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec

from orbitmq.admin.access import AccessCheck, AccessExport, PolicyRow, UserRow
from orbitmq.admin.brokers import BrokerDetail, BrokerRow, SettingRow
from orbitmq.admin.clusters import ClusterRow
from orbitmq.admin.dead_letters import DeadLetterRow
from orbitmq.admin.diagnosis import Finding
from orbitmq.admin.groups import ConnectionRow, GroupDetail, GroupRow, SubscriptionRow
from orbitmq.admin.messages import MessageRow
from orbitmq.admin.offsets import QueueLag, TopicLag
from orbitmq.admin.resets import ResetStep
from orbitmq.admin.sending import ReceiptRow
from orbitmq.admin.statistics import TrafficRow
from orbitmq.admin.topics import QueueRow, TopicDetail, TopicOnBroker, TopicRow
from orbitmq.admin.traces import GroupState, MessageTrace, TraceEvent
from orbitmq.cli import spark_rows
from orbitmq.cli.dev import Ready
from orbitmq.cli.measuring import BenchRow
from orbitmq.cli.spark_rows import DeadLetterCount, StageLatency, Volumes
from orbitmq.cli.store_rows import RecordRow, Repair, RepairStep
from orbitmq.storage import listing
from orbitmq.storage.listing import Listing
from orbitmq.storage.verification import DamagedRange, StoreFinding, Verification

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
FIELDS: Final = DOCS / "cli-fields.md"
SCHEMAS: Final = DOCS / "cli-schemas.json"

# command -> what it prints, and whether it prints many
ROWS: Final[dict[str, type[msgspec.Struct]]] = {
    "topic ls": TopicRow,
    "topic tail": MessageRow,
    "group ls": GroupRow,
    "group lag": TopicLag,
    "group lag --queues": QueueLag,
    "group connections": ConnectionRow,
    "msg send": ReceiptRow,
    "msg find": MessageRow,
    "dlq ls": DeadLetterRow,
    "dlq ls GROUP": MessageRow,
    "dlq export": MessageRow,
    "store dump": RecordRow,
    "broker ls": BrokerRow,
    "broker config": SettingRow,
    "broker stats": TrafficRow,
    "cluster": ClusterRow,
    "acl ls": PolicyRow,
    "acl policy ls": PolicyRow,
    "acl user ls": UserRow,
    "acl check": AccessCheck,
    "bench": BenchRow,
    "doctor": Finding,
    "spark trace": StageLatency,
    "spark dlq": DeadLetterCount,
}
DOCUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "topic describe": TopicDetail,
    "group describe": GroupDetail,
    "msg get": MessageRow,
    "msg trace": MessageTrace,
    "broker describe": BrokerDetail,
    "acl export": AccessExport,
    "store ls": Listing,
    "store verify": Verification,
    "store repair": Repair,
    "spark stats": Volumes,
    "dev --json-ready": Ready,
}
ANY_COLUMNS: Final = ("spark sql",)  # rows with a field for each column of the query
STREAMS: Final = ("topic tail", "dlq export", "store dump")  # one row a line
_PARTS: Final = (
    TopicOnBroker, QueueRow, SubscriptionRow, TraceEvent, GroupState, ResetStep,
    listing.LogFile, listing.StoredQueue, listing.KeyFile, listing.StoredTable, StoreFinding, DamagedRange, RepairStep,
    spark_rows.TopicVolume, spark_rows.TagVolume, spark_rows.HourVolume, spark_rows.QueueSkew, spark_rows.LargeMessage,
)  # fmt: skip
_FIELD: Final = re.compile(r"    (\w+): (.+?)(?: = .+?)?(?:  # (.+))?")


def tables() -> str:
    """The page: a section a struct."""
    sections = [_section(struct) for struct in _structs()]
    listed = "\n".join(
        f"| `orbitmq {name}` | {'list of ' if name in ROWS else ''}[{struct.__name__}](#{struct.__name__.lower()}) |"
        for name, struct in {**ROWS, **DOCUMENTS}.items()
    )
    listed += "".join(f"\n| `orbitmq {name}` | list of objects with the columns of the query |" for name in ANY_COLUMNS)
    return (
        "# Fields of the command's output\n\n"
        "Made by `python -m tests.cli.field_tables` from the structs that the commands print; do not edit. The same as JSON\n"
        "Schema: [cli-schemas.json](cli-schemas.json). Times are ISO 8601 in UTC. `?` marks a field that may be null. Streams\n"
        f"({', '.join(f'`{name}`' for name in STREAMS)}) print one object a line. How to choose and sort by fields: [cli.md](cli.md).\n\n"
        f"| Command with `-o json` | prints |\n|---|---|\n{listed}\n\n" + "\n".join(sections)
    )


def _structs() -> list[type[msgspec.Struct]]:
    structs: set[type[msgspec.Struct]] = {*ROWS.values(), *DOCUMENTS.values(), *_PARTS}
    return sorted(structs, key=lambda struct: struct.__name__)


def _section(struct: type[msgspec.Struct]) -> str:
    text = (inspect.getdoc(struct) or "").strip()
    described = "" if text.startswith("Struct(") or text == inspect.getdoc(msgspec.Struct) else f"{text}\n\n"
    rows = []
    written = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    structs = [one for one in reversed(struct.__mro__) if issubclass(one, msgspec.Struct) and one is not msgspec.Struct]
    for line in (line for one in structs for line in inspect.getsource(one).splitlines()):
        found = _FIELD.fullmatch(line)
        if found is None or found[1] not in struct.__struct_fields__:
            continue
        kind = found[2].replace(" | None", "?").replace("datetime", "time")
        rows.append(f"| `{written[found[1]]}` | {kind} | {found[3] or ''} |")
    assert len(rows) == len(struct.__struct_fields__), struct
    return f"## {struct.__name__}\n\n{described}| Field | Type | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def schemas() -> str:
    """JSON Schema of each command's output."""
    commands = {**ROWS, **DOCUMENTS}
    (found, components) = msgspec.json.schema_components(commands.values(), ref_template="#/$defs/{name}")
    of_command: dict[str, Any] = {
        name: {"type": "array", "items": schema} if name in ROWS else schema
        for name, schema in zip(commands, found, strict=True)
    } | {name: {"type": "array", "items": {"type": "object"}} for name in ANY_COLUMNS}
    for struct in _structs():
        if struct.__name__ in components:
            _mark_times(struct, components[struct.__name__])
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "commands": of_command, "$defs": components}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"


def _mark_times(struct: type[msgspec.Struct], schema: dict[str, Any]) -> None:
    """All our times name their zone, which msgspec cannot know."""
    hints = get_type_hints(struct)
    for name, written in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        if datetime in (hints[name], *get_args(hints[name])):
            of_field = schema["properties"][written]
            for one in of_field.get("anyOf", [of_field]):
                if one["type"] == "string":
                    one["format"] = "date-time"


def write() -> None:
    FIELDS.write_text(tables())
    SCHEMAS.write_text(schemas())


if __name__ == "__main__":
    write()
