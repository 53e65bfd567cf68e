"""Records of a queue, gathered for the answer to a pull: the loop of `orbitmq.storage.reading.QueueReader._collect_plain`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.byte_order cimport load32, load64

cdef enum:
    ENTRY_BYTES = 20
    LARGE_BYTES = 256 << 10  # more than this is better sent from where it lies


def gather(bytes entries, memory, int64_t start, int64_t end, int64_t limit, int64_t most):
    """How many records these entries lead to, and the records one behind the other; None if the loop in Python must look.

    It must if one does not lie between `start`, where `memory` begins, and `end`; or if they are more than is worth a copy.
    At most `most` records of at most `limit` bytes, but one in any case.
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
        if offset < start or offset > end or size > end - offset or total + size > LARGE_BYTES:
            return None
        total += size
        count += 1
        entry += ENTRY_BYTES
    gathered = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(gathered)
    entry = <const uint8_t *>PyBytes_AS_STRING(entries)
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
    return count, gathered
