"""The properties of many records as columns, by whoever is quickest: the accelerator's loop, or numpy (property_columns.py).

The loop splits all texts at once and gives the buffers of the map's columns and of the three properties that are columns of their
own. It leaves what is unusual to property_columns.py, which says what the columns hold: both make the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from orbitmq.accelerated import compiled
from orbitmq.message.properties import KEYS, TAGS, UNIQUE_KEY
from orbitmq.spark.byte_ranges import as_text, binary_column, text_column
from orbitmq.spark.property_columns import PropertyColumns

if TYPE_CHECKING:
    from orbitmq.spark.record_fields import Bytes, Numbers

_SINGLES: Final = tuple(name.encode() for name in (TAGS, KEYS, UNIQUE_KEY))


class Properties(Protocol):
    """Of the records that were asked for, in their order."""

    def raw(self) -> pa.StringArray: ...

    def single(self, name: bytes) -> pa.StringArray: ...

    def map(self, kind: pa.DataType) -> pa.MapArray: ...


def property_columns(data: Bytes, starts: Numbers, ends: Numbers) -> Properties:
    """Of the records whose encoded properties are the ranges [start, end)."""
    loops = compiled("columns")
    starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    found = loops.properties(data, starts, ends, _SINGLES) if loops is not None else None
    if found is None:
        return PropertyColumns(binary_column(data, starts, ends))
    return _SplitProperties(data, starts, ends, found)


class _SplitProperties:
    def __init__(self, data: Bytes, starts: Numbers, ends: Numbers, found: tuple[Any, ...]) -> None:
        self._data, self._starts, self._ends = data, starts, ends
        self._begins, self._names, self._values, singles, self._is_ascii = found
        self._singles = dict(zip(_SINGLES, singles, strict=True))

    def raw(self) -> pa.StringArray:
        return text_column(self._data, self._starts, self._ends)

    def single(self, name: bytes) -> pa.StringArray:
        offsets, values, there, nulls = self._singles[name]
        count = len(self._starts)
        if nulls == count:
            return pa.nulls(count, pa.string())
        buffers = [pa.py_buffer(there) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(values)]
        if self._is_ascii:
            return pa.Array.from_buffers(pa.string(), count, buffers, nulls)
        return as_text(pa.Array.from_buffers(pa.binary(), count, buffers, nulls))

    def map(self, kind: pa.DataType) -> pa.MapArray:
        try:
            names, values = self._texts(self._names, kind.key_type), self._texts(self._values, kind.item_type)
        except pa.ArrowInvalid:  # not UTF-8
            return PropertyColumns(binary_column(self._data, self._starts, self._ends)).map(kind)
        begins = pa.Array.from_buffers(pa.int32(), len(self._starts) + 1, [None, pa.py_buffer(self._begins)])
        return pa.MapArray.from_arrays(begins, names, values, type=kind)

    def _texts(self, column: tuple[bytes, bytes], kind: pa.DataType) -> pa.Array:
        offsets, data = column
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        count = len(offsets) // 4 - 1
        if self._is_ascii and kind == pa.string():
            return pa.Array.from_buffers(kind, count, buffers)
        return pa.Array.from_buffers(pa.binary(), count, buffers).cast(kind)
