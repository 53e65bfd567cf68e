"""What the sockets use of the pulls: frames are taken, their answers stand in `pieces` until they are released."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from orbitmq_accelerator.pull_header cimport Pull

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef enum:
    MOST_PIECES = 1024  # the system takes no more at once
    MOST_VIEWS = 4
    MOST_TAGS = 32


cdef struct Portions:
    int64_t bytes_in_memory, count_in_memory, bytes_on_disk, count_on_disk


cdef class Terms:
    cdef str group_name, topic_name
    cdef str subscription, expression_type  # as pulls say them
    cdef object settings, group, topic  # that the rest was found out from
    cdef tuple known  # what the group's heartbeats said, where that counts; or None
    cdef object wishes
    cdef bint is_usual
    cdef int64_t read_queues, topic_flag, group_flag
    cdef bint is_sent_away_when_behind
    cdef int tags  # how many are wanted; 0: all messages are
    cdef int32_t tag_codes[MOST_TAGS]


cdef class SwiftPulls:
    cdef object pulling, configuration, topics, groups, offsets, compacted, store, log, table, lock, unlock
    cdef object served, served_lite, others
    cdef list found  # the texts between the numbers of an answer's header
    cdef dict terms
    cdef Portions usual, bulk
    cdef int64_t recent_bytes, most_filtered

    # Of the run: answers that are to be written.
    cdef iovec pieces[MOST_PIECES]
    cdef Py_ssize_t piece_count, size
    cdef uint8_t *headers
    cdef Py_ssize_t headers_used
    cdef Py_buffer views[MOST_VIEWS]  # of log files
    cdef int64_t starts[MOST_VIEWS]
    cdef int64_t ends[MOST_VIEWS]
    cdef int view_count

    cdef Py_ssize_t take_frames(self, connection, const uint8_t *start, Py_ssize_t length) except -1
    cdef bytes joined(self, Py_ssize_t start)
    cdef void release(self) noexcept

    cdef bint take_safely(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1
    cdef bint take(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1
    cdef Terms find_terms(self, const Pull *pull)
    cdef bint still_hold(self, Terms terms, const Pull *pull) except -1
    cdef Terms make_terms(self, const Pull *pull)
    cdef bint hold(self, connection, Terms terms, const Pull *pull) except -1
    cdef int commit_if_asked(self, Terms terms, const Pull *pull) except -1
    cdef bint collect(
        self, Terms terms, const Pull *pull, const uint8_t *entry, Py_ssize_t given, int64_t *next_offset, int64_t *count
    ) except -1
    cdef const uint8_t *record_at(self, int64_t offset, int64_t size) except? NULL
    cdef bint open_view(self, int64_t offset) except -1
    cdef bint add_piece(self, const uint8_t *data, Py_ssize_t length) noexcept
    cdef int write_header(
        self, Py_ssize_t piece, Terms terms, const Pull *pull, int64_t next_offset, int64_t low, int64_t high, int64_t body_bytes
    ) except -1


cdef bint begins_with_a_pull(const uint8_t *data, Py_ssize_t length) noexcept nogil
