"""What the acks use of the pops: one is taken at a time."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.copies cimport Window
from orbitmq_accelerator.lanes cimport Lane, Lanes
from orbitmq_accelerator.leases cimport MOST_MESSAGES, Answers, LeaseBook, Lot, Party


cdef struct Pop:
    int64_t opaque
    Text group, topic
    Text expression_type, expression  # of no length where they are not said
    int64_t queue_id, most, invisible_ms, poll_ms, init_mode, born_ms


cdef class PopTerms:
    cdef bytes key
    cdef Party party
    cdef object settings, group, topic  # that the rest was found out from
    cdef bint is_usual
    cdef int64_t read_queues, retry_percent
    cdef tuple retry_topics
    cdef bytes kind  # of the topic, as handles name it
    cdef dict lanes  # by queue id


cdef class SwiftPops:
    cdef object serving, popping, topics, groups, offsets, log, served
    cdef LeaseBook book
    cdef Lanes lanes
    cdef Window window
    cdef dict terms
    cdef PopTerms last_terms
    cdef Py_ssize_t lane_count
    cdef list found  # the texts between the numbers of an answer's header
    cdef int64_t recent_bytes, most_bytes, most_count

    # What the pop finds: messages of some queues, and records in their order.
    cdef Lot lots[MOST_MESSAGES]
    cdef int lot_count
    cdef int64_t places[MOST_MESSAGES]  # in the log
    cdef int64_t sizes[MOST_MESSAGES]
    cdef int record_count
    cdef int64_t record_bytes, rest

    cdef Py_ssize_t take_safely(self, const uint8_t *frame, Py_ssize_t length, Answers answers) except -1
    cdef bint take(self, const Pop *pop, Answers answers) except -1
    cdef PopTerms find_terms(self, const Pop *pop)
    cdef bint still_hold(self, PopTerms terms) except -1
    cdef PopTerms make_terms(self, const Pop *pop)
    cdef Lane find_lane(self, PopTerms terms, int64_t queue_id)
    cdef bint find_messages(self, PopTerms terms, const Pop *pop, int64_t chance) except -1
    cdef bint look_into(self, Lane lane, int64_t queue_id, int64_t offset, int64_t wanted) except -1
    cdef int lease_all(self, PopTerms terms, const Pop *pop, int64_t now_ms) except -1
    cdef int write_answer(self, PopTerms terms, const Pop *pop, int64_t now_ms, Answers answers) except -1
    cdef int count_given(self, PopTerms terms) except -1
