"""What the sends use of the ends of transactions."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.copies cimport Copies
from orbitmq_accelerator.record cimport Record


cdef class SwiftEnds:
    cdef Copies copies
    cdef object log, half_messages, half_message, served
    cdef dict undecided, finished
    cdef list decided
    cdef bytes waited_in

    cdef int begin(self, str topic, const Record *half) except -1
    cdef bint take(self, const uint8_t *header, Py_ssize_t length, const uint8_t *memory, int64_t start) except -1
    cdef int note(self, str topic, int64_t seconds, int64_t size) except -1
    cdef int hand_over(self) except -1
