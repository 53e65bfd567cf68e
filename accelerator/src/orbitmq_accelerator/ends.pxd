"""What the sends use of the ends of transactions."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.copies cimport Copies, Tail
from orbitmq_accelerator.record cimport Record


cdef class SwiftEnds:
    cdef Copies copies
    cdef object half_messages, half_message, served
    cdef dict undecided
    cdef bytes waited_in

    # Of a run.
    cdef bint is_open  # the copies know of it
    cdef int64_t lacks  # bytes that the log must have room for, then the last one can be taken; 0: it is unusual
    cdef list decided
    cdef dict finished  # by topic and seconds since they were born: how many, and the bytes of their records
    # What is like the last one, and not in there yet.
    cdef str topic
    cdef int64_t seconds, alike, alike_bytes

    cdef int begin(self, str topic, const Record *half) except -1
    cdef bint take(self, const uint8_t *header, Py_ssize_t length, Tail *tail, stored_at) except -1
    cdef int count(self, str topic, int64_t seconds, int64_t size) except -1
    cdef int note_alike(self) except -1
    cdef int hand_over(self) except -1
