"""What the pulls use of the queues: entries, from memory or from their file."""

from libc.stdint cimport int64_t, uint8_t


cdef struct Extent:
    int64_t low, high  # of the queue: its first number, and the next
    const uint8_t *entries  # from the offset that was asked for; the lane's, until it is read again
    Py_ssize_t given


cdef class Lane:
    cdef tuple queue_key  # topic, queue id
    cdef tuple pulled_key  # topic, group, queue id
    cdef object queue  # whose entries these are, as they were after so many changes
    cdef int64_t changes, first
    cdef bytes entries
    cdef bint is_kept


cdef class Lanes:
    cdef object table, lock, unlock
    cdef list kept  # those that hold entries
    cdef Lane large  # the one that holds too many to be kept

    cdef bint read(self, Lane lane, int64_t offset, int64_t limit, Extent *extent) except -1
    cdef bint find_range(self, tuple queue_key, int64_t *low, int64_t *high) except -1
    cdef bint is_there(self, Lane lane) except -1
    cdef int64_t end_of(self, Lane lane) except -1
    cdef int read_again(self, Lane lane, queue, log, int64_t offset, int64_t limit, int64_t wanted) except -1
    cdef int keep(self, Lane lane) except -1
