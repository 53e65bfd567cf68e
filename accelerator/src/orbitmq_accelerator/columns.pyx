"""Records as the buffers of Arrow columns, for those who read topics and stores with Spark: the loops of `orbitmq.spark.decoding`.

    chain         where the records of a pull's body begin          decoding._chain
    layout        where the parts of each record are                record_fields._layout
    numbers       one field of each record                          record_fields.RecordFields
    gathered      scattered values made into one column             byte_ranges.binary_column
    properties    the map of each record, and single properties     property_columns.PropertyColumns

A column of values comes as two buffers: where each begins (32 bits, one more than there are values), and the bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from orbitmq_accelerator.byte_order cimport load32, load64

cdef enum:
    NAME_END = 1
    VALUE_END = 2
    MOST_ENTRIES = 64  # of one record: each is compared with those before it
    MOST_SINGLES = 8
    MOST_BYTES = 0x7FFFFFFF  # of one column
    # A record: see orbitmq/message/record.py, which has the layout.
    FIXED_BYTES = 91
    MAGIC_AT = 4
    SYS_FLAG_AT = 36
    BODY_AT = 88
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20
    IPV6_EXTRA_BYTES = 12
    MOST_V1_TOPIC = 127

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint64_t HIGH_BITS = 0x8080808080808080

cdef struct Entry:
    const uint8_t *name
    const uint8_t *value
    int32_t name_bytes
    int32_t value_bytes

cdef struct Single:
    const uint8_t *name
    Py_ssize_t name_bytes
    int64_t total


def chain(const uint8_t[::1] records, int64_t fixed_bytes):
    """Where records begin, by their sizes alone: 64 bits each. Whatever is shorter than `fixed_bytes` is the last."""
    cdef int64_t at = 0, end = records.shape[0], size
    cdef Py_ssize_t count = 0, room = end // fixed_bytes + 1
    cdef bytes positions = PyBytes_FromStringAndSize(NULL, room * 8)
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(positions)
    with nogil:
        while at < end:
            out[count] = at
            count += 1
            if end - at < fixed_bytes:
                break
            size = <int32_t>load32(&records[at])
            if size < fixed_bytes:
                break
            at += size
    return positions[: count * 8]


def layout(const uint8_t[::1] memory, const int64_t[::1] starts):
    """Ends, system flags, and begin and end of body and topic of each record: six columns of 64 bits, one behind the other.

    None if the parts of some record do not add up: what is wrong with which is for Python to say.
    """
    cdef Py_ssize_t number, count = starts.shape[0]
    cdef bytes columns = PyBytes_FromStringAndSize(NULL, 6 * count * 8)
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(columns)
    cdef int64_t length = memory.shape[0]
    cdef bint sound = True
    with nogil:
        for number in range(count):
            if starts[number] < 0 or starts[number] + FIXED_BYTES > length:
                sound = False
            else:
                sound = _parts_of(&memory[0], starts[number], length, out + number, count)
            if not sound:
                break
    return columns if sound else None


cdef inline bint _parts_of(const uint8_t *memory, int64_t at, int64_t length, int64_t *out, Py_ssize_t step) noexcept nogil:
    cdef int64_t size = <int32_t>load32(memory + at), end = at + size, body_at = at + BODY_AT, body_end, topic_at, topic_bytes
    cdef uint32_t magic = load32(memory + at + MAGIC_AT)
    cdef int32_t sys_flag = <int32_t>load32(memory + at + SYS_FLAG_AT)
    if size < FIXED_BYTES or end > length or (magic != MAGIC_V1 and magic != MAGIC_V2):
        return False
    if sys_flag & BORN_HOST_IPV6:
        body_at += IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_IPV6:
        body_at += IPV6_EXTRA_BYTES
    if body_at + 3 > end:
        return False
    body_end = body_at + <int32_t>load32(memory + body_at - 4)
    if body_end < body_at or body_end + 3 > end:
        return False
    if magic == MAGIC_V2:
        topic_bytes, topic_at = _int16(memory + body_end), body_end + 2
    else:
        topic_bytes, topic_at = memory[body_end], body_end + 1
        if topic_bytes > MOST_V1_TOPIC:
            return False
    if topic_bytes < 0 or topic_at + topic_bytes + 2 > end:
        return False
    size = _int16(memory + topic_at + topic_bytes)
    if size < 0 or topic_at + topic_bytes + 2 + size != end:
        return False
    out[0] = end
    out[step] = sys_flag
    out[2 * step] = body_at
    out[3 * step] = body_end
    out[4 * step] = topic_at
    out[5 * step] = topic_at + topic_bytes
    return True


cdef inline int64_t _int16(const uint8_t *at) noexcept nogil:
    return <int16_t>((at[0] << 8) | at[1])


def numbers(const uint8_t[::1] memory, const int64_t[::1] places, int width, bint is_signed):
    """The number at each place, of 4 or 8 bytes, as 64 bits. Whoever asks knows that the places lie inside."""
    cdef Py_ssize_t number, count = places.shape[0]
    cdef bytes column = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(column)
    cdef int64_t last = memory.shape[0] - width
    for number in range(count):
        if places[number] < 0 or places[number] > last:
            raise IndexError(f"a number at {places[number]} of {memory.shape[0]} bytes")
    with nogil:
        if width == 8:
            for number in range(count):
                out[number] = load64(&memory[0] + places[number])
        elif is_signed:
            for number in range(count):
                out[number] = <int32_t>load32(&memory[0] + places[number])
        else:
            for number in range(count):
                out[number] = load32(&memory[0] + places[number])
    return column


def gathered(const uint8_t[::1] memory, const int64_t[::1] starts, const int64_t[::1] ends):
    """The bytes of each range [start, end); None if they are too many for one column, or lie outside."""
    cdef Py_ssize_t number, count = starts.shape[0]
    cdef int64_t total = 0, size = memory.shape[0]
    for number in range(count):
        if starts[number] < 0 or ends[number] < starts[number] or ends[number] > size:
            return None
        total += ends[number] - starts[number]
    if total > MOST_BYTES:
        return None
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4), data = PyBytes_FromStringAndSize(NULL, total)
    cdef int32_t *offset = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    cdef int32_t at = 0
    with nogil:
        for number in range(count):
            offset[number] = at
            memcpy(out + at, &memory[0] + starts[number], ends[number] - starts[number])
            at += <int32_t>(ends[number] - starts[number])
        offset[count] = at
    return offsets, data


def properties(const uint8_t[::1] memory, const int64_t[::1] starts, const int64_t[::1] ends, tuple names):
    """Of records whose encoded properties are the ranges [start, end), in order of

        where each record's entries begin; names of all entries; their values; for each of `names` its values and the bits of
        the rows that have one; whether all of it is ASCII

    None if the loops in Python must look: at a record that has one name twice or very many, or at ranges that are nonsense.
    """
    cdef Entry *entries = NULL
    cdef int64_t *entry_ends = NULL
    try:
        return _properties(memory, starts, ends, names, &entries, &entry_ends)
    finally:
        free(entries)
        free(entry_ends)


cdef object _properties(
    const uint8_t[::1] memory, const int64_t[::1] starts, const int64_t[::1] ends, tuple names,
    Entry **entries, int64_t **entry_ends,
):
    cdef Py_ssize_t number, count = starts.shape[0], room = 0
    cdef int64_t filled = 0, size = memory.shape[0], name_total = 0, value_total = 0, first
    cdef Single singles[MOST_SINGLES]
    cdef uint64_t bits = 0
    cdef Py_ssize_t wanted = len(names), which
    cdef bytes name
    if wanted > MOST_SINGLES:
        return None
    for which in range(wanted):
        name = names[which]  # kept by the tuple
        singles[which].name = <const uint8_t *>PyBytes_AS_STRING(name)
        singles[which].name_bytes = PyBytes_GET_SIZE(name)
        singles[which].total = 0
    entry_ends[0] = <int64_t *>realloc(NULL, (count + 1) * sizeof(int64_t))
    if entry_ends[0] is NULL:
        raise MemoryError
    for number in range(count):
        if starts[number] < 0 or ends[number] < starts[number] or ends[number] > size:
            return None
        if room - filled < MOST_ENTRIES:
            room = max(2 * room, 16 * count + MOST_ENTRIES)
            entries[0] = <Entry *>_grown(entries[0], room * sizeof(Entry))
        first = filled
        filled += _entries_of(&memory[0] + starts[number], &memory[0] + ends[number], entries[0] + filled, &bits)
        if filled < first:
            return None
        entry_ends[0][number] = filled
        for first in range(first, filled):
            name_total += entries[0][first].name_bytes
            value_total += entries[0][first].value_bytes
            for which in range(wanted):
                if _is_named(&entries[0][first], &singles[which]):
                    singles[which].total += entries[0][first].value_bytes
    if name_total > MOST_BYTES or value_total > MOST_BYTES:
        return None
    cdef bytes begins = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
    cdef int32_t *begin = <int32_t *>PyBytes_AS_STRING(begins)
    begin[0] = 0
    for number in range(count):
        begin[number + 1] = <int32_t>entry_ends[0][number]
    columns = []
    for which in range(wanted):
        columns.append(_single(entries[0], entry_ends[0], count, &singles[which]))
    all_names = _texts(entries[0], filled, name_total, False)
    all_values = _texts(entries[0], filled, value_total, True)
    return begins, all_names, all_values, columns, (bits & HIGH_BITS) == 0


cdef void *_grown(void *memory, Py_ssize_t size) except NULL:
    cdef void *grown = realloc(memory, size)
    if grown is NULL:
        raise MemoryError
    return grown


cdef int64_t _entries_of(const uint8_t *at, const uint8_t *end, Entry *out, uint64_t *bits) noexcept nogil:
    """How many entries there are; -MOST_ENTRIES if they are many, or one name comes twice. `bits`: all bytes, or'ed."""
    cdef const uint8_t *value_end
    cdef const uint8_t *name_end
    cdef int64_t count = 0, other
    _or_bytes(at, end, bits)
    while at < end:
        value_end = <const uint8_t *>memchr(at, VALUE_END, end - at)
        if value_end is NULL:
            value_end = end
        name_end = <const uint8_t *>memchr(at, NAME_END, value_end - at)
        if name_end is not NULL and name_end > at and name_end < value_end - 1:
            if count == MOST_ENTRIES:
                return -MOST_ENTRIES
            out[count].name = at
            out[count].name_bytes = <int32_t>(name_end - at)
            out[count].value = name_end + 1
            out[count].value_bytes = <int32_t>(value_end - name_end - 1)
            for other in range(count):
                if out[other].name_bytes == out[count].name_bytes and memcmp(out[other].name, at, name_end - at) == 0:
                    return -MOST_ENTRIES
            count += 1
        at = value_end + 1
    return count


cdef void _or_bytes(const uint8_t *at, const uint8_t *end, uint64_t *bits) noexcept nogil:
    cdef uint64_t word, all_of_them = 0
    while end - at >= 8:
        memcpy(&word, at, 8)
        all_of_them |= word
        at += 8
    while at < end:
        all_of_them |= at[0]
        at += 1
    bits[0] |= all_of_them


cdef bint _is_named(const Entry *entry, const Single *single) noexcept nogil:
    return entry.name_bytes == single.name_bytes and memcmp(entry.name, single.name, single.name_bytes) == 0


cdef tuple _texts(const Entry *entries, int64_t count, int64_t total, bint is_value):
    """The names of all entries, or their values."""
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4), data = PyBytes_FromStringAndSize(NULL, total)
    cdef int32_t *offset = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t number
    cdef int32_t at = 0
    with nogil:
        for number in range(count):
            offset[number] = at
            if is_value:
                memcpy(out + at, entries[number].value, entries[number].value_bytes)
                at += entries[number].value_bytes
            else:
                memcpy(out + at, entries[number].name, entries[number].name_bytes)
                at += entries[number].name_bytes
        offset[count] = at
    return offsets, data


cdef tuple _single(const Entry *entries, const int64_t *entry_ends, Py_ssize_t count, const Single *single):
    """Values of one name, and a bit for each row that has it."""
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
    cdef bytes data = PyBytes_FromStringAndSize(NULL, single.total)
    cdef bytes there = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
    cdef int32_t *offset = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    cdef uint8_t *bit = <uint8_t *>PyBytes_AS_STRING(there)
    cdef Py_ssize_t number, found = 0
    cdef int64_t entry = 0
    cdef int32_t at = 0
    with nogil:
        memset(bit, 0, (count + 7) // 8)
        for number in range(count):
            offset[number] = at
            while entry < entry_ends[number]:
                if _is_named(&entries[entry], single):
                    memcpy(out + at, entries[entry].value, entries[entry].value_bytes)
                    at += entries[entry].value_bytes
                    bit[number >> 3] |= 1 << (number & 7)
                    found += 1
                entry += 1
        offset[count] = at
    return offsets, data, there, count - found
