"""Rows of a frame as members of message batches, for those who write topics with Spark: the loop of `orbitmq.spark.sink_rows`.

    members    header + body + properties of every row, one behind the other        sink_rows._members, property_texts

A column of texts comes as Arrow keeps it: where each begins (32 bits, one more than there are rows), the bytes, and a bit for each row
that has one, or None where all have. A member is drawn in message/batch.py.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from orbitmq_accelerator.byte_order cimport store32

cdef enum:
    NAME_END = 1
    VALUE_END = 2
    HEAD_BYTES = 20  # size, magic, CRC, flag, body length
    LENGTH_BYTES = 2  # of the properties
    MOST_TEXTS = 8
    MOST_KNOWN = 64  # names that are remembered: the rows of a frame mostly have the same ones, in the same order
    MOST_BYTES = 0x7FFFFFFF  # of one column

cdef struct Text:
    const uint8_t *head  # the name and what ends it
    int32_t head_bytes
    const int32_t *offsets
    const uint8_t *data
    const uint8_t *bits
    int64_t first_bit

cdef struct Known:
    const uint8_t *name
    int32_t name_bytes
    bint is_left_out

cdef struct Entries:
    const int32_t *begins
    const uint8_t *bits
    int64_t first_bit
    const int32_t *name_offsets
    const uint8_t *names
    const int32_t *value_offsets
    const uint8_t *values


def members(tuple bodies, tuple texts, tuple entries, frozenset left_out, int64_t most_body, int64_t most_properties):
    """Where each row's member begins, and the bytes of all. None if the loops in Python must look: some row cannot be sent.

    `bodies`: offsets, bytes. `texts`: for each property name with its end, offsets, bytes, bits, number of the first bit. `entries`: where
    each row's begin, bits, number of the first bit, offsets and bytes of the names, offsets and bytes of the values; or empty.
    """
    cdef const int32_t[::1] offsets = bodies[0], begins, name_offsets, value_offsets
    cdef const uint8_t[::1] data = bodies[1], bits, names, values
    cdef Py_ssize_t count = offsets.shape[0] - 1, which
    cdef Text columns[MOST_TEXTS]
    cdef Entries found
    cdef bytes head
    cdef int32_t *sizes = NULL
    cdef uint8_t *skipped = NULL
    if len(texts) > MOST_TEXTS:
        return None
    for which in range(len(texts)):
        head, text_offsets, text_data, text_bits, first_bit = texts[which]  # kept by the tuple
        columns[which].head = <const uint8_t *>PyBytes_AS_STRING(head)
        columns[which].head_bytes = <int32_t>PyBytes_GET_SIZE(head)
        name_offsets, names = text_offsets, text_data
        columns[which].offsets = &name_offsets[0]
        columns[which].data = &names[0]
        columns[which].bits = NULL
        columns[which].first_bit = first_bit
        if text_bits is not None:
            bits = text_bits
            columns[which].bits = &bits[0]
    memset(&found, 0, sizeof(found))
    if entries:
        begins, name_offsets, names, value_offsets, values = entries[0], entries[3], entries[4], entries[5], entries[6]
        if entries[1] is not None:
            bits = entries[1]
            found.bits = &bits[0]
        found.first_bit = entries[2]
        found.begins, found.name_offsets, found.names = &begins[0], &name_offsets[0], &names[0]
        found.value_offsets, found.values = &value_offsets[0], &values[0]
    cdef int64_t total
    try:
        sizes = <int32_t *>malloc((count + 1) * sizeof(int32_t))
        skipped = <uint8_t *>malloc(1 + (found.begins[count] - found.begins[0] if entries else 0))
        if sizes is NULL or skipped is NULL:
            raise MemoryError
        total = _measured(&offsets[0], count, columns, len(texts), &found, left_out, most_body, most_properties, sizes, skipped)
        if total < 0 or total > MOST_BYTES:
            return None
        return _written(&offsets[0], &data[0], count, columns, len(texts), &found, sizes, skipped, total)
    finally:
        free(sizes)
        free(skipped)


cdef int64_t _measured(
    const int32_t *offsets, Py_ssize_t count, const Text *texts, Py_ssize_t text_count, const Entries *entries,
    frozenset left_out, int64_t most_body, int64_t most_properties, int32_t *sizes, uint8_t *skipped,
) except -2:
    """The bytes of all members; `sizes`: of each row's properties; `skipped`: entries that are left out. -1: some row is unusual."""
    cdef Known known[MOST_KNOWN]
    cdef Py_ssize_t row, which
    cdef int64_t total = 0, size, body_bytes
    for which in range(MOST_KNOWN):
        known[which].name_bytes = -1
    for row in range(count):
        body_bytes = offsets[row + 1] - offsets[row]
        if body_bytes <= 0 or body_bytes > most_body:
            return -1
        size = 0
        for which in range(text_count):
            size += _text_bytes(&texts[which], row)
            if size > most_properties:  # also: what cannot be a property
                return -1
        if entries.begins is not NULL and _is_there(entries.bits, entries.first_bit + row):
            size += _entry_bytes(entries, row, left_out, known, skipped, most_properties)
        if size > most_properties:
            return -1
        sizes[row] = <int32_t>size
        total += HEAD_BYTES + body_bytes + LENGTH_BYTES + size
    return total


cdef inline int64_t _text_bytes(const Text *text, Py_ssize_t row) noexcept nogil:
    """Of one property with its name and ends: 0 where the row has none, MOST_BYTES where it cannot be one."""
    cdef int32_t start = text.offsets[row], size = text.offsets[row + 1] - text.offsets[row]
    if size == 0 or not _is_there(text.bits, text.first_bit + row):
        return 0
    if memchr(text.data + start, NAME_END, size) is not NULL or memchr(text.data + start, VALUE_END, size) is not NULL:
        return MOST_BYTES
    return text.head_bytes + size + 1


cdef int64_t _entry_bytes(
    const Entries *entries, Py_ssize_t row, frozenset left_out, Known *known, uint8_t *skipped, int64_t most
) except -2:
    """Of all entries of a row; MOST_BYTES where one cannot be a property."""
    cdef int64_t size = 0
    cdef int32_t entry, first = entries.begins[row], name_bytes, value_bytes
    cdef const uint8_t *name
    cdef Known *same
    cdef Known other
    for entry in range(first, entries.begins[row + 1]):
        name = entries.names + entries.name_offsets[entry]
        name_bytes = entries.name_offsets[entry + 1] - entries.name_offsets[entry]
        same = &known[entry - first] if entry - first < MOST_KNOWN else &other
        if same is &other or same.name_bytes != name_bytes or memcmp(same.name, name, name_bytes) != 0:
            if not name_bytes or memchr(name, NAME_END, name_bytes) is not NULL or memchr(name, VALUE_END, name_bytes) is not NULL:
                return MOST_BYTES
            same.name, same.name_bytes = name, name_bytes
            same.is_left_out = PyBytes_FromStringAndSize(<const char *>name, name_bytes) in left_out
        skipped[entry - entries.begins[0]] = same.is_left_out
        if same.is_left_out:
            continue
        value_bytes = entries.value_offsets[entry + 1] - entries.value_offsets[entry]
        if not value_bytes or memchr(entries.values + entries.value_offsets[entry], VALUE_END, value_bytes) is not NULL:
            return MOST_BYTES
        size += name_bytes + value_bytes + 2
        if size > most:
            return MOST_BYTES
    return size


cdef tuple _written(
    const int32_t *offsets, const uint8_t *data, Py_ssize_t count, const Text *texts, Py_ssize_t text_count,
    const Entries *entries, const int32_t *sizes, const uint8_t *skipped, int64_t total,
):
    cdef bytes starts = PyBytes_FromStringAndSize(NULL, (count + 1) * 4), everything = PyBytes_FromStringAndSize(NULL, total)
    cdef int32_t *start = <int32_t *>PyBytes_AS_STRING(starts)
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(everything)
    cdef uint8_t *out = begin
    cdef Py_ssize_t row, which
    cdef int32_t entry, body_bytes
    with nogil:
        for row in range(count):
            start[row] = <int32_t>(out - begin)
            body_bytes = offsets[row + 1] - offsets[row]
            memset(out, 0, HEAD_BYTES)
            store32(out, HEAD_BYTES + body_bytes + LENGTH_BYTES + sizes[row])
            store32(out + HEAD_BYTES - 4, body_bytes)
            memcpy(out + HEAD_BYTES, data + offsets[row], body_bytes)
            out += HEAD_BYTES + body_bytes
            out[0], out[1] = <uint8_t>(sizes[row] >> 8), <uint8_t>sizes[row]
            out += LENGTH_BYTES
            for which in range(text_count):
                out = _write_text(out, &texts[which], row)
            if entries.begins is NULL or not _is_there(entries.bits, entries.first_bit + row):
                continue
            for entry in range(entries.begins[row], entries.begins[row + 1]):
                if not skipped[entry - entries.begins[0]]:
                    out = _write_entry(out, entries, entry)
        start[count] = <int32_t>(out - begin)
    return starts, everything


cdef inline uint8_t *_write_text(uint8_t *out, const Text *text, Py_ssize_t row) noexcept nogil:
    cdef int32_t size = text.offsets[row + 1] - text.offsets[row]
    if size == 0 or not _is_there(text.bits, text.first_bit + row):
        return out
    memcpy(out, text.head, text.head_bytes)
    out += text.head_bytes
    memcpy(out, text.data + text.offsets[row], size)
    out[size] = VALUE_END
    return out + size + 1


cdef inline uint8_t *_write_entry(uint8_t *out, const Entries *entries, int32_t entry) noexcept nogil:
    cdef int32_t size = entries.name_offsets[entry + 1] - entries.name_offsets[entry]
    memcpy(out, entries.names + entries.name_offsets[entry], size)
    out[size] = NAME_END
    out += size + 1
    size = entries.value_offsets[entry + 1] - entries.value_offsets[entry]
    memcpy(out, entries.values + entries.value_offsets[entry], size)
    out[size] = VALUE_END
    return out + size + 1


cdef inline bint _is_there(const uint8_t *bits, int64_t number) noexcept nogil:
    return bits is NULL or (bits[number >> 3] >> (number & 7)) & 1
