"""Rows of the sink as members of message batches by the accelerator's loop: one pass over the columns, one buffer.

It takes frames in which every row can be sent. Whatever is unusual (a row to be refused, a delay, a type with 64-bit offsets) is left to
sink_rows.py, which says what a member holds: both make the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from orbitmq.accelerated import compiled
from orbitmq.message.properties import MAX_PROPERTIES_BYTES
from orbitmq.spark.property_texts import LEFT_OUT, NAME_END

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_NOTHING: Final = np.zeros(1, np.uint8)


def compiled_members(
    bodies: pa.Array,
    texts: Sequence[tuple[str, pa.Array]],
    properties: pa.Array | None,
    max_body_bytes: int,
    left_out: Collection[str] = LEFT_OUT,
) -> pa.Array | None:
    """`texts`: properties that are columns of their own, in their order; null or empty where a row has none."""
    loops = compiled("members")
    if loops is None or not len(bodies) or not _fits(bodies, texts, properties):
        return None
    found = loops.members(
        _texts(bodies)[:2],
        tuple((f"{name}{NAME_END}".encode(), *_texts(column)) for name, column in texts),
        _entries(properties) if properties is not None else (),
        frozenset(name.encode() for name in left_out),
        max_body_bytes,
        MAX_PROPERTIES_BYTES,
    )
    if found is None:
        return None
    offsets, data = map(pa.py_buffer, found)
    return pa.Array.from_buffers(pa.binary(), len(bodies), [None, offsets, data])


def _fits(bodies: pa.Array, texts: Sequence[tuple[str, pa.Array]], properties: pa.Array | None) -> bool:
    if bodies.null_count or bodies.type not in (pa.binary(), pa.string()):
        return False
    if any(column.type != pa.string() for _, column in texts):
        return False
    return properties is None or (_is_map_of_texts(properties.type) and not properties.items.null_count)


def _is_map_of_texts(kind: pa.DataType) -> bool:
    """Whether or not its values may be null: Spark says of `map(...)` that they are not, and that is another type."""
    is_map: bool = pa.types.is_map(kind)
    return is_map and bool(pa.types.is_string(kind.key_type) and pa.types.is_string(kind.item_type))


def _texts(column: pa.Array) -> tuple[Any, ...]:
    """Offsets, bytes, bits of the rows that have one (None: all have), number of the first bit."""
    there, offsets, data = column.buffers()
    return (
        np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4),
        np.frombuffer(data, np.uint8) if data is not None and data.size else _NOTHING,
        np.frombuffer(there, np.uint8) if column.null_count else None,
        column.offset,
    )


def _entries(properties: pa.MapArray) -> tuple[Any, ...]:
    there, begins = properties.buffers()[:2]
    bits = np.frombuffer(there, np.uint8) if properties.null_count else None
    return (
        np.frombuffer(begins, np.int32, len(properties) + 1, properties.offset * 4),
        bits,
        properties.offset,
        *_begins_and_bytes(properties.keys),
        *_begins_and_bytes(properties.items),
    )


def _begins_and_bytes(texts: pa.Array) -> tuple[Any, ...]:
    """Of a column that may have no values at all: then there may be no offsets either."""
    return _texts(texts)[:2] if len(texts) else (np.zeros(1, np.int32), _NOTHING)
