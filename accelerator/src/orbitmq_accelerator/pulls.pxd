"""What the sockets use of the pulls: a turn is begun, frames are taken, their answers stand in `pieces` until they are released, and what was
answered is counted when the turn is settled."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from orbitmq_accelerator.lanes cimport Lane, Lanes
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
    cdef bytes key
    cdef dict lanes  # by queue id
    cdef int64_t held_in, held_version  # the turn in which they were last looked at, and the version that was asked for
    cdef int64_t pulls, messages, message_bytes  # answered in this turn, and not counted yet
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
    cdef object pulling, configuration, topics, groups, offsets, store, log
    cdef object served, served_lite, others
    cdef dict resets, pulled_to, compacted
    cdef Lanes lanes
    cdef list found  # the texts between the numbers of an answer's header
    cdef dict terms
    cdef Terms last_terms
    cdef Py_ssize_t lane_count
    cdef Portions usual, bulk
    cdef int64_t recent_bytes, most_filtered
    cdef bint has_pool  # then what is appended can be read only later

    # Of the turn.
    cdef int64_t turn
    cdef list uncounted  # terms
    cdef int64_t answered, answered_lite

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
    cdef void begin_turn(self) noexcept
    cdef int settle_turn(self) except -1
    cdef void close_views(self) noexcept

    cdef bint take_safely(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1
    cdef bint take(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1
    cdef Terms find_terms(self, const Pull *pull)
    cdef bint still_hold(self, Terms terms, const Pull *pull) except -1
    cdef bint hold_now(self, Terms terms, const Pull *pull) except -1
    cdef Terms make_terms(self, const Pull *pull)
    cdef int keep_terms(self, Terms terms) except -1
    cdef Lane find_lane(self, Terms terms, int64_t queue_id)
    cdef int note_answered(self, Terms terms, const Pull *pull, int64_t messages, int64_t message_bytes) except -1
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
