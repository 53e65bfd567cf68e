"""Pages of a mapped file, made ready for stores to them: `orbitmq.storage.open_files.MappedFile.make_storable`.

A store to each of them, of the byte that is there. Nobody's own store is lost by it: reading and storing is one step of the processor. It
must be: a page that was read first is mapped for reading, and two megabytes of them would not be mapped at once any more.
(The system's way, MADV_POPULATE_WRITE, keeps the whole process from mapping memory while it waits for the disk.)
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

cdef extern from *:
    """
    static void store_same(unsigned char *at) {
    #if defined(__x86_64__)
        __asm__ volatile("lock; orb $0, %0" : "+m"(*at));  /* a compiler may make a mere load of the other one */
    #else
        __atomic_fetch_or(at, 0, __ATOMIC_RELAXED);
    #endif
    }
    """
    void store_same(uint8_t *at) noexcept nogil

cdef enum:
    PAGE_BYTES = 4096


def make_storable(memory, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    cdef Py_ssize_t at
    PyObject_GetBuffer(memory, &view, PyBUF_CONTIG)
    end = min(end, view.len)
    try:
        with nogil:
            at = start
            while at < end:
                store_same(<uint8_t *>view.buf + at)
                at += PAGE_BYTES - at % PAGE_BYTES
    finally:
        PyBuffer_Release(&view)
