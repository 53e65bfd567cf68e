"""Entering records into their queues and into the key index.

`usual_entries` is the loop of `orbitmq.storage.indexer.Indexer` for records like those before them, `put_keys` that of
`orbitmq.storage.key_index.KeyIndex` for keys in ASCII. Both leave the rest to them.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from orbitmq_accelerator.byte_order cimport load32, store32, store64

cdef enum:
    QUEUE_ENTRY_BYTES = 20
    KEY_ENTRY_BYTES = 20
    KEY_HEADER_BYTES = 40
    NO_QUEUE_ENTRY = 0x4  # in a record's system flag
    VALUE_END = 2
    MAX_INT = 0x7FFFFFFF


cdef class Run:
    """Entries that follow each other in one queue, as its file holds them."""

    cdef readonly object queue
    cdef readonly int64_t first  # queue offset
    cdef readonly int64_t start  # log offset of the first record
    cdef readonly int64_t end  # of the last one
    cdef readonly bytearray packed
    cdef int64_t next

    def __init__(self, queue, first, start):
        self.queue = queue
        self.first = self.next = first
        self.start = start
        self.packed = bytearray()


cdef class Likeness:
    """What is known of properties of one length: see `indexer._Likeness`, which it is made of."""

    cdef Py_ssize_t start, end
    cdef bytes before, after
    cdef int64_t code
    cdef object keys

    def __init__(self, before, after, start, end, code, keys):
        self.before = before
        self.after = after
        self.start = start
        self.end = end
        self.code = code
        self.keys = keys


def usual_entries(list batch, dict likenesses, dict queues, queue_type, str delay_topic, list waiting_keys):
    """How many records at the front of the batch are usual, and their runs. `waiting_keys` gets their keys, unless it is None."""
    cdef dict runs = {}
    cdef Py_ssize_t done = 0, length
    cdef tuple entry, queue
    cdef bytes properties
    cdef Likeness like
    cdef Run run
    cdef const char *text
    cdef int64_t offset, size, queue_offset
    cdef uint8_t *out
    for item in batch:
        entry = <tuple>item
        queue = <tuple>entry[0]
        properties = <bytes>entry[6]
        length = PyBytes_GET_SIZE(properties)
        found = likenesses.get(length)
        if found is None:
            break
        like = <Likeness>found
        text = PyBytes_AS_STRING(properties)
        if (
            memcmp(text, PyBytes_AS_STRING(like.before), like.start)
            or memcmp(text + like.end, PyBytes_AS_STRING(like.after), length - like.end)
            or memchr(text + like.start, VALUE_END, like.end - like.start) != NULL
            or <int64_t>entry[4] & NO_QUEUE_ENTRY
            or queue[0] == delay_topic
        ):
            break
        offset, size, queue_offset = entry[1], entry[2], entry[3]
        known = runs.get(queue)
        if known is None:
            opened = queues.get(queue)
            if type(opened) is not queue_type:
                break
            run = Run(opened, queue_offset, offset)
            runs[queue] = run
        else:
            run = <Run>known
            if run.next != queue_offset:
                break
        length = PyByteArray_GET_SIZE(run.packed)
        PyByteArray_Resize(run.packed, length + QUEUE_ENTRY_BYTES)
        out = <uint8_t *>PyByteArray_AS_STRING(run.packed) + length
        store64(out, offset)
        store32(out + 8, <uint32_t>size)
        store64(out + 12, like.code)
        run.end = offset + size
        run.next = queue_offset + 1
        if waiting_keys is not None:
            key = PyBytes_FromStringAndSize(text + like.start, like.end - like.start)
            waiting_keys.append((offset, entry[5], queue[0], key, like.keys))
        done += 1
    return done, list(runs.values())


cdef uint32_t hashed(uint32_t value, const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """Java's hash of what `value` is the hash of and this text, as the key index keeps it: never negative."""
    cdef Py_ssize_t at
    for at in range(length):
        value = 31 * value + text[at]
    return value if value <= MAX_INT else (0 - value) & MAX_INT


cdef bint is_ascii(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint8_t any_bit = 0
    for at in range(length):
        any_bit |= text[at]
    return any_bit < 0x80


def put_keys(memory, int64_t slots, int64_t first, int64_t last, int64_t begin_ms, list records, dict topic_hashes):
    """Enter records with one key each, from entry `first` on; how many slots are used for the first time, or -1.

    -1, and nothing entered, if one is not usual: it has no unique key or more keys, is not ASCII, its topic is not among
    `topic_hashes`, its time is before `begin_ms`; or if entry `last` would be reached.
    """
    cdef Py_buffer view
    cdef tuple record
    cdef bytes key
    cdef int64_t number = first, stored_at_ms, newly_used = 0, slot_at, older
    cdef uint32_t value
    cdef uint8_t *data
    cdef uint8_t *entry
    if begin_ms <= 0 or first <= 1 or first + len(records) > last:
        return -1
    for item in records:
        record = <tuple>item
        stored_at_ms = record[1]
        if not record[3] or record[4] or record[2] not in topic_hashes:
            return -1
        key = <bytes>record[3]
        if stored_at_ms < begin_ms or (stored_at_ms - begin_ms) // 1000 > MAX_INT:
            return -1
        if not is_ascii(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)):
            return -1
    PyObject_GetBuffer(memory, &view, PyBUF_CONTIG)
    data = <uint8_t *>view.buf
    try:
        for item in records:
            record = <tuple>item
            key = <bytes>record[3]
            stored_at_ms = record[1]
            value = hashed(
                <uint32_t><int64_t>topic_hashes[record[2]], <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            )
            slot_at = KEY_HEADER_BYTES + 4 * (value % slots)
            older = load32(data + slot_at)
            if not 0 < older < number:
                older = 0
                newly_used += 1
            entry = data + KEY_HEADER_BYTES + 4 * slots + KEY_ENTRY_BYTES * number
            store32(entry, value)
            store64(entry + 4, <int64_t>record[0])
            store32(entry + 12, <uint32_t>((stored_at_ms - begin_ms) // 1000))
            store32(entry + 16, <uint32_t>older)
            store32(data + slot_at, <uint32_t>number)
            number += 1
    finally:
        PyBuffer_Release(&view)
    return newly_used
