"""What `orbitmq_accelerator.sockets` uses of refusals."""

from libc.stdint cimport uint8_t


cdef class RefusedSends:
    cdef list before  # the frame of an answer up to its opaque, by the digits of that
    cdef bytes after

    # Of one read.
    cdef uint8_t *answers
    cdef Py_ssize_t answered, answers_room
    cdef Py_ssize_t frames

    cdef Py_ssize_t take_frames(self, const uint8_t *start, Py_ssize_t length) except -1
    cdef int write_answer(self, const uint8_t *opaque, Py_ssize_t digits) except -1
