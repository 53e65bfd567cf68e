"""What pops and acks share: the bytes they answer with, and the book of leases."""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.command_header cimport Text

cdef enum:
    MOST_MESSAGES = 32  # of one lease
    MOST_NAME = 512  # bytes of a topic, a group or a broker: what is longer goes the ordinary way
    # An entry has three names and the revive topic, at most so many messages, and little else.
    BODY_ROOM = 4 * MOST_NAME + 24 * MOST_MESSAGES + 1024
    PROPERTIES_ROOM = 4 * MOST_NAME + 1024


cdef class Answers:
    cdef uint8_t *data
    cdef Py_ssize_t room, length

    cdef uint8_t *reserve(self, Py_ssize_t more) except NULL


cdef class Party:
    cdef bytes group_text, topic_text
    cdef str group, topic
    cdef str name, name_of_leases, name_of_acks  # that counters go by


cdef struct Lot:
    int64_t queue_id, start, next  # messages of one queue, that are leased together
    int64_t record_bytes  # of them
    int64_t pop_time_ms, invisible_ms, revive_queue


cdef class LeaseBook:
    cdef object store, log, configuration, lease_log, open_leases, stats, now_ms
    cdef dict counters
    cdef dict parties
    cdef Party last_party
    cdef object settings  # that the following are of
    cdef bint is_usual
    cdef int64_t revive_queues, precision_ms
    cdef str broker, cluster
    cdef bytes broker_text, revive_topic_text
    cdef uint8_t body[BODY_ROOM]
    cdef uint8_t properties[PROPERTIES_ROOM]

    cdef bint open(self) except -1
    cdef Party party(self, Text group, Text topic)
    cdef tuple key(self, Party party, const Lot *lot)
    cdef int count(self, str name, str key, int64_t value) except -1
    cdef int lease(self, Party party, const Lot *lot, int64_t now_ms) except -1
    cdef int ack(
        self, Party party, const Lot *lot, object lease, const int64_t *offsets, int count, object bits, int64_t now_ms
    ) except -1
    cdef int settle(self, Party party, const Lot *lot, object lease, int count, object bits) except -1
    cdef int append(
        self, const Lot *lot, const uint8_t *body_end, uint8_t *properties, int64_t deliver_ms, int64_t now_ms
    ) except -1
    cdef bint place(self, bytes body, bytes properties, int64_t now_ms, bytes born_host) except -1
