r"""Columns of a frame as the property text of messages, `name \x01 value \x02` repeated: all rows at once.

The inverse of property_columns.py. See message/properties.py for the form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.message.properties import KEY_SEPARATOR, RESERVED

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"
_SEPARATORS: Final = f"[{NAME_END}{VALUE_END}]"
DEDUP_ID: Final = "ORBITMQ_DEDUP_ID"

# Made anew for each message, or given by columns of their own.
LEFT_OUT: Final = RESERVED | {DEDUP_ID}


def entry(name: str, values: pa.Array) -> pa.Array:
    """The property of each row; null where it has none."""
    return pc.binary_join_element_wise(f"{name}{NAME_END}", values, VALUE_END, "")


def joined(entries: list[pa.Array]) -> pa.Array:
    """All properties of each row, as bytes."""
    texts = pc.binary_join_element_wise(*entries, "", null_handling="replace", null_replacement="")
    return texts.cast(pa.binary())


def map_entries(properties: pa.Array, left_out: Collection[str] = LEFT_OUT) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The text of a map column, and which rows hold what cannot be a property.

    Names that belong to the system are left out: a map that was read from a topic has them, and they are not its user's.
    """
    lists = properties.cast(_AS_LIST)
    names, values = lists.flatten().flatten()
    rows = np.asarray(pc.list_parent_indices(lists), np.int64)
    # Few names are in many rows: each is looked at once.
    encoded = names.dictionary_encode()
    distinct, codes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
    keep = ~_mask(pc.is_in(distinct, value_set=pa.array(sorted(left_out), pa.string())))[codes]
    if not keep.all():
        rows, codes, values = rows[keep], codes[keep], values.filter(pa.array(keep))
    wrong = _mask(pc.or_(_is_empty(distinct), pc.match_substring_regex(distinct, _SEPARATORS)))[codes]
    wrong |= _mask(_is_empty(values))
    if _has_separators(values):
        wrong |= _mask(pc.match_substring(values, VALUE_END))
    bad = np.zeros(len(properties), bool)
    bad[rows[wrong]] = True
    heads = pc.binary_join_element_wise(distinct, NAME_END, "").take(pa.array(codes))
    texts = pc.binary_join_element_wise(heads, values, VALUE_END, "", null_handling="replace")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(properties)))]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ""), bad


def keys_text(keys: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Keys as one text, separated by blanks, null for none; and the rows whose list holds what cannot be a key."""
    if pa.types.is_string(keys.type):
        return _or_null(keys), np.zeros(len(keys), bool)
    rows = np.asarray(pc.list_parent_indices(keys), np.int64)
    wrong = pc.or_kleene(_is_empty(keys.flatten()), pc.match_substring(keys.flatten(), KEY_SEPARATOR))
    bad = np.zeros(len(keys), bool)
    bad[rows[pc.fill_null(wrong, True).to_numpy(zero_copy_only=False)]] = True
    return _or_null(pc.binary_join(keys, KEY_SEPARATOR)), bad


def holds_separator(texts: pa.Array) -> npt.NDArray[np.bool_]:
    if not _has_separators(texts):
        return np.zeros(len(texts), bool)
    found = pc.match_substring_regex(texts, _SEPARATORS)
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _has_separators(texts: pa.Array) -> bool:
    """Whether any of them may: one look at the bytes of all. Hardly any text does, and looking at each takes long."""
    _, offsets_buffer, data = texts.buffers()
    if data is None or not len(texts):
        return False
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4)
    found = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return bool(((found == ord(NAME_END)) | (found == ord(VALUE_END))).any())


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.string()), texts)


def _is_empty(texts: pa.Array) -> pa.Array:
    return pc.equal(pc.binary_length(texts), 0)


def _mask(found: pa.Array) -> npt.NDArray[np.bool_]:
    """Null counts as found: what is not there cannot be sent either."""
    return pc.fill_null(found, True).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


_AS_LIST: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))
