"""Entries of queues, for those who go along them: what `orbitmq.storage.queue_index.QueueIndex.entries` gives, many at a time.

Who pulls from the middle of a queue will ask for what follows. So more of its file is read than one answer needs, and kept until it is
used up, or until entries of the queue were cut off or changed (`EntryLog.changes`): what is only added changes none of those that are there.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from orbitmq.errors import OrbitError
from orbitmq.storage.queue_index import QueueIndex

cdef enum:
    ENTRY_BYTES = 20
    READ_AT_ONCE = 400  # entries; two pages hold them
    MOST_KEPT = 256  # lanes with entries
    MOST_KEPT_BYTES = 64 << 10  # by one of them: who pulls may ask for a whole file


cdef class Lane:
    """A queue, as one group goes along it."""

    def __init__(self, str topic, str group, int64_t queue_id):
        self.queue_key = (topic, queue_id)
        self.pulled_key = (topic, group, queue_id)
        self.entries = b""


cdef class Lanes:
    def __init__(self, table):
        self.table = table
        self.lock = table.lock.acquire
        self.unlock = table.lock.release
        self.kept = []

    cdef bint read(self, Lane lane, int64_t offset, int64_t limit, Extent *extent) except -1:
        """Up to `limit` entries from `offset` on, all of one file. False if it is no plain queue, or cannot be read."""
        cdef int64_t wanted, behind
        queue = (<dict>self.table.queues).get(lane.queue_key)
        if type(queue) is not QueueIndex:
            return False
        extent.given = 0
        self.lock()
        try:
            log = queue.log
            extent.low = queue.min_offset
            extent.high = next_number(log)
            if not extent.low <= offset < extent.high:
                return True
            wanted = min(limit, extent.high - offset)
            if (
                queue is not lane.queue or <int64_t>log.changes != lane.changes or offset < lane.first
                or (offset + wanted - lane.first) * ENTRY_BYTES > PyBytes_GET_SIZE(lane.entries)
            ):
                self.read_again(lane, queue, log, offset, limit, wanted)
        except OrbitError:  # the ordinary way will meet it too, and say so
            return False
        finally:
            self.unlock()
        behind = offset - lane.first
        extent.entries = <const uint8_t *>PyBytes_AS_STRING(lane.entries) + behind * ENTRY_BYTES
        extent.given = min(limit, PyBytes_GET_SIZE(lane.entries) // ENTRY_BYTES - behind)
        return True

    cdef bint find_range(self, tuple queue_key, int64_t *low, int64_t *high) except -1:
        """`Store.queue_range`; false if it is no plain queue."""
        queue = (<dict>self.table.queues).get(queue_key)
        if type(queue) is not QueueIndex:
            return False
        self.lock()
        try:
            low[0], high[0] = queue.min_offset, next_number(queue.log)
        finally:
            self.unlock()
        return True

    cdef bint is_there(self, Lane lane) except -1:
        return lane.queue_key in <dict>self.table.queues

    cdef int64_t end_of(self, Lane lane) except -1:
        """The number that the next message of the queue gets; 0 of a queue that is not there."""
        queue = (<dict>self.table.queues).get(lane.queue_key)
        if queue is None:
            return 0
        self.lock()
        try:
            return queue.next_offset
        finally:
            self.unlock()

    cdef int read_again(self, Lane lane, queue, log, int64_t offset, int64_t limit, int64_t wanted) except -1:
        cdef int64_t behind = offset - <int64_t>log.written
        cdef const char *tail
        if self.large is not None:
            self.large.entries = b""
            self.large = None
        lane.queue = queue
        lane.changes = log.changes
        lane.first = offset
        lane.entries = b""
        if behind >= 0:
            tail = PyByteArray_AS_STRING(<bytearray>log.tail) + behind * ENTRY_BYTES
            lane.entries = PyBytes_FromStringAndSize(tail, wanted * ENTRY_BYTES)
        else:
            lane.entries = queue.entries(offset, max(limit, READ_AT_ONCE))
        if PyBytes_GET_SIZE(lane.entries) > MOST_KEPT_BYTES:
            self.large = lane
        else:
            self.keep(lane)
        return 0

    cdef int keep(self, Lane lane) except -1:
        cdef Lane other
        if lane.is_kept:
            return 0
        if len(self.kept) == MOST_KEPT:
            for other in self.kept:
                other.entries = b""
                other.is_kept = False
            self.kept.clear()
        lane.is_kept = True
        self.kept.append(lane)
        return 0


cdef inline int64_t next_number(log) except -1:
    """`EntryLog.next`"""
    cdef bytearray tail = log.tail
    return <int64_t>log.written + PyByteArray_GET_SIZE(tail) // ENTRY_BYTES
