"""Records of a queue, gathered for the answer to a pull: the loop of `orbitmq.storage.reading.QueueReader._collect_plain`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.byte_order cimport load32, load64

cdef enum:
    ENTRY_BYTES = 20
    SMALL_BYTES = 4 << 10  # more is given from where it lies: thousands may wait for the same records


def gather(bytes entries, memory, int64_t start, int64_t end, int64_t limit, int64_t most):
    """How many records these entries lead to, of how many bytes, and the records; None if the loop in Python must look.

    It must if one does not lie between `start`, where `memory` begins, and `end`. At most `most` records of at most `limit` bytes, but
    one in any case. Small ones are copied together, others are views, one for those that lie one behind the other.
    """
    cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t number, given = PyBytes_GET_SIZE(entries) // ENTRY_BYTES, count = 0
    cdef int64_t offset, total = 0
    cdef uint32_t size
    cdef uint8_t *out
    cdef Py_buffer view
    for number in range(given):
        offset, size = load64(entry), load32(entry + 8)
        if count and (total + size > limit or count >= most):
            break
        # Subtracted, not added: an entry that is damaged may hold any number.
        if offset < start or offset > end or size > end - offset:
            return None
        total += size
        count += 1
        entry += ENTRY_BYTES
    entry = <const uint8_t *>PyBytes_AS_STRING(entries)
    if total > SMALL_BYTES:
        return count, total, views_of(entry, count, memory, start)
    gathered = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(gathered)
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    if end - start > view.len:
        PyBuffer_Release(&view)
        return None
    for number in range(count):
        offset, size = load64(entry), load32(entry + 8)
        memcpy(out, <const uint8_t *>view.buf + (offset - start), size)
        out += size
        entry += ENTRY_BYTES
    PyBuffer_Release(&view)
    return count, total, [memoryview(gathered)]


cdef list views_of(const uint8_t *entry, Py_ssize_t count, memory, int64_t start):
    cdef list views = []
    cdef int64_t offset, run_start = load64(entry), run_end = run_start
    cdef Py_ssize_t number
    for number in range(count):
        offset = load64(entry)
        if offset != run_end:
            views.append(memory[run_start - start : run_end - start])
            run_start = run_end = offset
        run_end += load32(entry + 8)
        entry += ENTRY_BYTES
    views.append(memory[run_start - start : run_end - start])
    return views
