"""What other modules may use of the copies: files of a log as memory, and committing a half message."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.record cimport Record
from orbitmq_accelerator.stored_record cimport Goal


cdef struct Tail:  # where a log is written
    uint8_t *memory  # of its file
    int64_t memory_start, at, prepared_to


cdef class Window:
    cdef object files  # a SegmentedLog
    cdef int64_t start, end
    cdef Py_buffer view
    cdef bint is_open

    cdef const uint8_t *find(self, int64_t offset, int64_t size) except? NULL
    cdef int close(self) except -1


cdef class Tally:
    cdef int64_t messages, record_bytes


cdef class Copies:
    cdef object log, now_ms, note_record
    cdef bytes topic_name, topic_field
    cdef str topic  # of the last copy
    cdef int64_t topic_magic
    cdef dict queues  # of it, by number

    # Of the run that is open.
    cdef Py_buffer view
    cdef Tail tail
    cdef int64_t readable_end, most_body, stored_at_ms
    cdef int64_t lacks  # bytes of the last record, if it had no room
    cdef bytes store_host
    cdef dict next_offsets, sent
    cdef Tally tally  # of the last copy's topic, None before the first
    cdef object stored_at  # the same as the number

    cdef int64_t commit_half(
        self, const uint8_t *data, Py_ssize_t length, bytes waited_in, Text group, int64_t queue_offset, int64_t *born_at_ms
    ) except -1
    cdef bint fire(self, const uint8_t *unit, Window window, bytes waited_in, int64_t precision_ms) except -1
    cdef const uint8_t *find(self, Window window, int64_t offset, int64_t size) except? NULL
    cdef list tallies(self)
    cdef bint open(self) except -1
    cdef int begin(self, stored_at) except -1
    cdef int close(self) except -1
    cdef int64_t append(self, Record *record, const Goal *goal) except -1
    cdef bint choose_topic(self, const Goal *goal) except -1
    cdef tuple queue(self, int64_t queue_id)
