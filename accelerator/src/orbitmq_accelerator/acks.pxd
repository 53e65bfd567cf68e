"""What other modules may use of the acks: a run is taken, and its answers stand in `answers` until the next."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.lanes cimport Lanes
from orbitmq_accelerator.leases cimport MOST_MESSAGES, Answers, LeaseBook, Lot
from orbitmq_accelerator.pops cimport SwiftPops


cdef struct Ack:
    int64_t opaque
    Text group
    Text topic
    Text handle
    Py_ssize_t lease_bytes  # of the handle, that all messages of a lease have
    int64_t queue_id
    int64_t offset


cdef class SwiftAcks:
    cdef object ack_together, settling, topics, durability, served
    cdef LeaseBook book
    cdef Lanes lanes
    cdef SwiftPops pops  # or None where they go the ordinary way
    cdef Answers answers
    cdef bytes before_opaque, behind_opaque

    # Acks of one lease, that are not settled yet.
    cdef Ack first
    cdef int64_t offsets[MOST_MESSAGES]
    cdef int count

    cdef Py_ssize_t take_frames(self, const uint8_t *start, Py_ssize_t length) except -1
    cdef bint settle(self) except -1
    cdef bint settle_here(self, bint *is_decided) except -1
    cdef int write_answer(self, int64_t opaque) except -1


cdef bint begins_with_a_lease(const uint8_t *data, Py_ssize_t length) noexcept nogil
cdef bint has_a_pop(const uint8_t *data, Py_ssize_t length) noexcept nogil
