"""Arrow columns out of ranges of bytes: texts and bodies that lie scattered in a file become one column by one copy.

Where the accelerator is installed, a loop of its copies them. Else the trick is: offsets `start, end, start, end, ...` over the whole bytes make a column whose every second value is wanted and whose
others are what lies in between; `take` then copies the wanted ones, in C, without a Python object for any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from orbitmq.accelerated import compiled

if TYPE_CHECKING:
    from orbitmq.spark.record_fields import Bytes, Numbers


def binary_column(data: Bytes, starts: Numbers, ends: Numbers) -> pa.BinaryArray:
    """The bytes of each range [start, end). Ranges ascend by start; together they span less than 2 GiB."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    loops = compiled("columns")
    found = loops.gathered(data, np.ascontiguousarray(starts), np.ascontiguousarray(ends)) if loops else None
    if found is not None:
        offsets, values = found
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    first, last = int(starts[0]), int(ends.max())  # damage may make ranges overlap
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts - first
    edges[1::2] = ends - first
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data[first:last])]
    )
    return everything.take(pa.array(np.arange(0, 2 * count, 2)))


def as_text(column: pa.BinaryArray) -> pa.StringArray:
    """What is not UTF-8 becomes U+FFFD, as in `bytes.decode("utf-8", "replace")`."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
        return pa.array(texts, pa.string())


def text_column(data: Bytes, starts: Numbers, ends: Numbers) -> pa.StringArray:
    return as_text(binary_column(data, starts, ends))


def bytes_and_offsets(column: pa.BinaryArray) -> tuple[Bytes, Numbers]:
    """The bytes of a column without nulls, and where each value begins; the last number is where the last one ends."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets
