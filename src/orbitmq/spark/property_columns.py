r"""The properties of many records as columns: the whole map, or single ones such as TAGS, without a loop over records.

The texts (`name \x01 value \x02` repeated) lie one behind the other in one buffer. Every \x02 in it ends an entry, and so does
the end of a text whose last \x02 is missing; the first \x01 behind an entry's start ends its name. All of that is found by
comparing the buffer with two numbers. Messages of one producer mostly have the same names in the same order; where all records do,
their names need not be looked at one by one again, and the column of names is one that was made before. What is rare (one name twice in a record, text that is not UTF-8) is left to the plain
decoder in message/properties.py, which also says what the rules are.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from orbitmq.message.properties import decode_properties
from orbitmq.spark.byte_ranges import as_text, binary_column, bytes_and_offsets, text_column

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.spark.record_fields import Bytes, Mask, Numbers

_NAME_END: Final = 1
_VALUE_END: Final = 2
_WORD_BYTES: Final = 8
_MANY_CELLS: Final = 1 << 22  # up to so many (record, name) pairs are counted in a table
_MAP: Final = pa.map_(pa.string(), pa.string())


class PropertyColumns:
    """Of the records whose encoded properties are `raw`, a column without nulls."""

    def __init__(self, raw: pa.BinaryArray) -> None:
        self._raw = raw
        data, offsets = bytes_and_offsets(raw)
        # Room behind the end, so that a word can be read where the last name begins.
        used = data[: offsets[-1]] if len(offsets) else data
        self._data: Bytes = np.concatenate([used, np.zeros(_WORD_BYTES, np.uint8)])
        self._offsets = offsets
        self._starts, self._name_ends, self._ends = _entries(used, offsets)

    def __len__(self) -> int:
        return len(self._raw)

    def raw(self) -> pa.StringArray:
        return as_text(self._raw)

    def single(self, name: bytes) -> pa.StringArray:
        """The value of one property; null where a record has none."""
        alike = self._names_alike
        if alike is not None:
            if name not in alike:
                return pa.nulls(len(self), pa.string())
            last = len(alike) - 1 - alike[::-1].index(name)  # of two with one name the later counts
            each = slice(last, None, len(alike))
            return text_column(self._data, self._name_ends[each] + 1, self._ends[each])
        found = np.flatnonzero(self._named(name))
        if not len(found):
            return pa.nulls(len(self), pa.string())
        chosen = np.full(len(self), -1, np.int64)
        chosen[self._records[found]] = found  # of two with one name the later stays
        rows = np.flatnonzero(chosen >= 0)
        entries = chosen[rows]
        values = text_column(self._data, self._name_ends[entries] + 1, self._ends[entries])
        if len(rows) == len(self):
            return values
        positions = np.full(len(self), -1, np.int64)
        positions[rows] = np.arange(len(rows))
        return values.take(pa.array(positions, mask=positions < 0))

    def map(self, kind: pa.DataType = _MAP) -> pa.MapArray:
        """All of them, of the map type `kind`."""
        try:
            columns = self._names(kind)
            if columns is None:
                return self._plain_map(kind)
            offsets, names = columns
            values = binary_column(self._data, self._name_ends + 1, self._ends).cast(kind.item_type)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return self._plain_map(kind)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values, type=kind)

    def _names(self, kind: pa.DataType) -> tuple[npt.NDArray[np.int32], pa.Array] | None:
        """Where the entries of each record begin, and the names of all entries. None if some record has one twice."""
        alike = self._names_alike
        if alike is not None:
            if len(set(alike)) < len(alike):
                return None
            offsets = np.arange(0, len(self._starts) + 1, len(alike), dtype=np.int32)
            return offsets, _repeated(alike, len(self), kind.key_type)
        names = binary_column(self._data, self._starts, self._name_ends)
        if self._has_repeats(names):
            return None
        offsets = np.searchsorted(self._starts, self._offsets, "left").astype(np.int32)
        return offsets, names.cast(kind.key_type)

    def _plain_map(self, kind: pa.DataType) -> pa.MapArray:
        return pa.array([list(decode_properties(text).items()) for text in self._raw.to_pylist()], kind)

    @cached_property
    def _names_alike(self) -> tuple[bytes, ...] | None:
        """The names of every record, if all records have the same ones in the same order."""
        count = len(self)
        each = len(self._starts) // count if count else 0
        if not each or len(self._starts) != each * count or (self._starts[::each] != self._offsets[:-1]).any():
            return None
        starts, name_ends = self._starts.reshape(count, each), self._name_ends.reshape(count, each)
        lengths = name_ends - starts
        if (lengths != lengths[0]).any():
            return None
        words = np.ndarray((len(self._data) - _WORD_BYTES + 1,), "<u8", self._data, strides=(1,))
        for column, length in enumerate(lengths[0].tolist()):
            for begin in range(0, length, _WORD_BYTES):
                found = words[starts[:, column] + begin]
                mask = np.uint64((1 << 8 * min(_WORD_BYTES, length - begin)) - 1)
                if ((found ^ found[0]) & mask).any():
                    return None
        return tuple(self._data[at:end].tobytes() for at, end in zip(starts[0], name_ends[0], strict=True))

    @cached_property
    def _records(self) -> Numbers:
        """The record each entry belongs to."""
        return np.searchsorted(self._offsets[1:], self._starts, "right")

    def _named(self, name: bytes) -> Mask:
        """Entries of this name, by their first eight bytes and, if it is longer, the rest."""
        lengths = self._name_ends - self._starts
        mask: Mask = lengths == len(name)
        for begin in range(0, len(name), _WORD_BYTES):
            part = name[begin : begin + _WORD_BYTES]
            words = np.ndarray((len(self._data) - _WORD_BYTES + 1,), ">u8", self._data, strides=(1,))
            found = np.flatnonzero(mask)
            if not len(found):
                break
            shift = np.uint64(8 * (_WORD_BYTES - len(part)))
            same = words[self._starts[found] + begin].astype(np.uint64) >> shift == int.from_bytes(part, "big")
            mask[found] = same
        return mask

    def _has_repeats(self, names: pa.BinaryArray) -> bool:
        """Whether some record has one name twice."""
        encoded: Any = names.dictionary_encode()
        kinds = len(encoded.dictionary)
        cells = self._records * kinds + encoded.indices.to_numpy()
        if not len(cells):
            return False
        if len(self) * kinds <= _MANY_CELLS:
            return bool(np.bincount(cells).max() > 1)
        return len(np.unique(cells)) < len(cells)


def _repeated(names: tuple[bytes, ...], times: int, kind: pa.DataType) -> pa.Array:
    """The names, over and over."""
    power = max(times - 1, 1).bit_length()
    return _many(names, power, kind).slice(0, len(names) * times)


@lru_cache(maxsize=8)  # one for each kind of message that is read at a time
def _many(names: tuple[bytes, ...], power: int, kind: pa.DataType) -> pa.Array:
    few = pa.array([name.decode() for name in names], kind)
    return few.take(pa.array(np.tile(np.arange(len(names)), 1 << power)))


def _entries(data: Bytes, offsets: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Start, end of the name and end of each entry that has both a name and a value."""
    ends = np.flatnonzero(data == _VALUE_END)
    begins, limits = offsets[:-1], offsets[1:]
    cut_short = limits[(limits > begins) & (data[limits - 1] != _VALUE_END)] if len(data) else limits[:0]
    starts = np.empty(len(ends) + len(cut_short), np.int64)
    if len(cut_short):
        # An end without its \x02 takes no byte: the next entry begins right there.
        follows = np.concatenate([ends + 1, cut_short])
        order = np.argsort(follows, kind="stable")
        ends, follows = np.concatenate([ends, cut_short])[order], follows[order]
    else:
        follows = ends + 1
    if len(starts):
        starts[0] = 0
        starts[1:] = follows[:-1]
    name_ends = np.flatnonzero(data == _NAME_END)
    if len(name_ends) != len(ends) or not ((name_ends >= starts) & (name_ends < ends)).all():
        padded = np.append(name_ends, np.iinfo(np.int64).max)
        name_ends = padded[np.searchsorted(name_ends, starts)]
    whole = (name_ends > starts) & (name_ends < ends - 1)
    if whole.all():
        return starts, name_ends, ends
    return starts[whole], name_ends[whole], ends[whole]
