"""Pages of a mapped file, had in memory, made ready for stores and let go: `orbitmq.storage.open_files.MappedFile`, `read_in`, `make_storable`, `let_go`.

Each is one step without the interpreter's lock, or with it: a thread that gives it up again and again waits up to five milliseconds each
time while another computes, and then it is not ahead of anything.

To make a page storable is a store to it, of the byte that is there. Nobody's own store is lost by it: reading and storing is one step of the
processor. It must be: a page that was read first is mapped for reading, and two megabytes of them would not be mapped at once any more.
(The system's way, MADV_POPULATE_WRITE, keeps the whole process from mapping memory while it waits for the disk.)
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, ENOMEM, errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

import os

cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/uio.h>
    #include <unistd.h>

    static int duplicate_descriptor(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); }
    static void store_same(unsigned char *at) {
    #if defined(__x86_64__)
        __asm__ volatile("lock; orb $0, %0" : "+m"(*at));  /* a compiler may make a mere load of the other one */
    #else
        __atomic_fetch_or(at, 0, __ATOMIC_RELAXED);
    #endif
    }
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    int duplicate_descriptor(int descriptor) noexcept nogil
    ssize_t preadv(int descriptor, const iovec *parts, int count, long long position) noexcept nogil
    int close(int descriptor) noexcept nogil
    int madvise(void *start, size_t length, int advice) noexcept nogil
    int MADV_DONTNEED
    void store_same(uint8_t *at) noexcept nogil

cdef enum:
    PAGE_BYTES = 4096
    PIECE_BYTES = 128 << 10
    MOST_PIECES = 64


def duplicate(int descriptor):
    """`os.dup`, but for the lock."""
    cdef int own = duplicate_descriptor(descriptor)
    if own < 0:
        raise OSError(errno, os.strerror(errno))
    return own


def read_in(int descriptor, long long start, long long end):
    """All of [start, end), into memory that nobody looks at. The descriptor is closed."""
    cdef int failed = 0
    with nogil:
        failed = _read_in(descriptor, start, end)
        close(descriptor)
    if failed:
        raise OSError(failed, os.strerror(failed))


cdef int _read_in(int descriptor, long long start, long long end) noexcept nogil:
    """0, or what failed."""
    cdef iovec[MOST_PIECES] parts
    cdef int count
    cdef ssize_t read
    cdef void *piece = malloc(PIECE_BYTES)
    if piece == NULL:
        return ENOMEM
    for count in range(MOST_PIECES):
        parts[count].iov_base = piece
        parts[count].iov_len = PIECE_BYTES
    while start < end:
        count = <int>min((end - start + PIECE_BYTES - 1) // PIECE_BYTES, <long long>MOST_PIECES)
        read = preadv(descriptor, parts, count, start)
        if read < 0 and errno != EINTR:
            free(piece)
            return errno
        if read == 0:
            break
        if read > 0:
            start += read
    free(piece)
    return 0


def let_go(memory, Py_ssize_t start, Py_ssize_t end):
    """`start` and `end` are at the ends of pages."""
    cdef Py_buffer view
    cdef int failed = 0
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start < end <= view.len:
            raise ValueError(f"[{start}, {end}) is not within {view.len} bytes")
        with nogil:
            if madvise(<uint8_t *>view.buf + start, end - start, MADV_DONTNEED) != 0:
                failed = errno
    finally:
        PyBuffer_Release(&view)
    if failed:
        raise OSError(failed, os.strerror(failed))


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
