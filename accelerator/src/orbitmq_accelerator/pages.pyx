"""Pages of a mapped file made ready to be stored to: what the first store into each of them would else wait for.

A page that was only read in is still write-protected, and taking that off enters the file system's journal: while that is being written, an
appender would stand still. One call of the system does it for many pages, in a thread that nobody waits for.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer

cdef extern from * nogil:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    """
    enum:
        MADV_POPULATE_WRITE
    int madvise(void *start, size_t length, int advice)

cdef enum:
    PAGE_BYTES = 4096


def make_ready(memory, Py_ssize_t start, Py_ssize_t end):
    """Whether the pages of [start, end) are; their content stays. False where the system does not know how (Linux does from 5.14 on)."""
    cdef Py_buffer view
    cdef int result
    PyObject_GetBuffer(memory, &view, PyBUF_CONTIG)
    try:
        start -= start % PAGE_BYTES
        end = min(end, view.len)
        if start >= end:
            return True
        with nogil:
            result = madvise(<char *>view.buf + start, end - start, MADV_POPULATE_WRITE)
        return result == 0
    finally:
        PyBuffer_Release(&view)
