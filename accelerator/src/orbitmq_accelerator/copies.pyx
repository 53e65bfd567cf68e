"""Sending stored messages on: from the topic in which they waited to the one that they are for.

A delay that is over, a timer that fires and a transaction that is committed do the same: the record is appended again, for the topic and
queue that its properties name. Delays and timers come in runs. What is unusual (other hosts, a topic that was never stored, a full log
file) is not touched, and ends the run: whoever asked decodes that message and appends it, as `orbitmq.storage.sending_on` says.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from orbitmq_accelerator.byte_order cimport load32, load64, store32, store64
from orbitmq_accelerator.command_header cimport Text, is_plain, read_number
from orbitmq_accelerator.record cimport (
    BLANK_BYTES, HEAD_BYTES, KEEP_ORDER, MOST_PROPERTIES, Record, record_bytes, write_record,
)
from orbitmq_accelerator.stored_record cimport Goal, read_waiting, was_told
from orbitmq_accelerator.text cimport write_number, write_text

cdef enum:
    ENTRY_BYTES = 20  # of a queue
    UNIT_BYTES = 52  # of a timer log
    PLAIN_UNIT = 1
    TRANSACTION_FLAGS = 0xC
    COMMITTED_FLAG = 0x8
    MOST_TOLD = 96
    MOST_QUEUES = 1024  # of a topic, that are remembered


cdef class Window:
    """The file of a log in which offsets lie, as memory. To be closed soon: a file that is deleted stays as long as it is open."""

    def __init__(self, files):
        self.files = files

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(&self.view)

    cdef const uint8_t *find(self, int64_t offset, int64_t size) except? NULL:
        """So many bytes from there on; NULL if they are not all in one file."""
        if not (self.is_open and self.start <= offset < self.end):
            self.close()
            segment = self.files.segment_of(offset)
            if segment is None:
                return NULL
            PyObject_GetBuffer(segment.memory, &self.view, PyBUF_SIMPLE)
            self.is_open = True
            self.start = segment.start
            self.end = self.start + self.view.len
        if size < 0 or offset < self.start or size > self.end - offset:
            return NULL
        return <const uint8_t *>self.view.buf + (offset - self.start)

    cdef int close(self) except -1:
        if self.is_open:
            self.is_open = False
            PyBuffer_Release(&self.view)
        return 0


cdef class Tally:
    """What was sent on to one topic in a run."""


cdef class Copies:
    """Of one store. Belongs to the thread that appends. Its state stands in copies.pxd."""

    def __init__(self, log, now_ms):
        self.log = log
        self.now_ms = now_ms
        self.note_record = log.recent.append
        self.topic_name = b""
        self.queues = {}

    def commit(self, record, bytes waited_in, bytes group, int64_t queue_offset):
        """`SendingOn.commit_half`: the topic it is for, the size of its copy and when it was born; None, and nothing done."""
        cdef Py_buffer view
        cdef int64_t size = 0, born_at_ms = 0
        cdef Text wanted
        wanted.start, wanted.length = <const uint8_t *>PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group)
        if not self.open():
            return None
        try:
            PyObject_GetBuffer(record, &view, PyBUF_SIMPLE)
            try:
                size = self.commit_half(<const uint8_t *>view.buf, view.len, waited_in, wanted, queue_offset, &born_at_ms)
            finally:
                PyBuffer_Release(&view)
        finally:
            self.close()
        return (self.topic, size, born_at_ms) if size else None

    cdef int64_t commit_half(
        self, const uint8_t *data, Py_ssize_t length, bytes waited_in, Text group, int64_t queue_offset, int64_t *born_at_ms
    ) except -1:
        """In a run: the size of its copy for `topic`; 0, and nothing done, if it is unusual."""
        cdef Record half
        cdef Goal goal
        self.lacks = 0
        if not (
            is_waiting(data, length, waited_in, &half, &goal)
            and half.queue_offset == queue_offset
            and goal.group_bytes == group.length
            and memcmp(goal.group, group.start, group.length) == 0
            and not goal.waits_again
        ):
            return 0
        half.sys_flag = half.sys_flag & ~<int64_t>TRANSACTION_FLAGS | COMMITTED_FLAG
        half.prepared_offset = half.offset
        born_at_ms[0] = half.born_at_ms
        return self.append(&half, &goal)

    def send_on_delayed(self, bytes entries, bytes waited_in, int64_t now_ms, progress, int64_t number):
        """`SendingOn.delayed`"""
        cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(entries)
        cdef Py_ssize_t count = 0, given = PyBytes_GET_SIZE(entries) // ENTRY_BYTES
        cdef Window window = Window(self.log.files)
        cdef Record record
        cdef Goal goal
        cdef int64_t due_ms
        cdef const uint8_t *data
        cdef Py_buffer noted
        if not self.open():
            return 0, ()
        noted.buf = NULL
        try:
            if progress is not None:
                PyObject_GetBuffer(progress, &noted, PyBUF_CONTIG)
            while count < given:
                due_ms = load64(entry + 12)
                data = self.find(window, load64(entry), <int32_t>load32(entry + 8))
                if due_ms > now_ms or data == NULL:
                    break
                if not is_waiting(data, <int32_t>load32(entry + 8), waited_in, &record, &goal) or record.stored_at_ms > due_ms:
                    break
                record.prepared_offset = 0
                if not self.append(&record, &goal):
                    break
                count += 1
                entry += ENTRY_BYTES
                if noted.buf != NULL:
                    KEEP_ORDER()
                    store64(<uint8_t *>noted.buf, number + count)
        finally:
            if noted.buf != NULL:
                PyBuffer_Release(&noted)
            window.close()
            self.close()
        return count, self.tallies()

    def send_on_timers(
        self, positions, Py_ssize_t first, Py_ssize_t stop, unit_files, bytes waited_in, int64_t precision_ms, progress
    ):
        """`SendingOn.timers`"""
        cdef Window window = Window(self.log.files), units = Window(unit_files)
        cdef Py_ssize_t number = first
        cdef const uint8_t *unit
        cdef Py_buffer noted, places
        if not self.open():
            return 0, ()
        noted.buf = places.buf = NULL
        try:
            PyObject_GetBuffer(positions, &places, PyBUF_SIMPLE)
            if progress is not None:
                PyObject_GetBuffer(progress, &noted, PyBUF_CONTIG)
            stop = min(stop, places.len // <Py_ssize_t>sizeof(int64_t))
            while number < stop:
                unit = units.find((<const int64_t *>places.buf)[number], UNIT_BYTES)
                if unit == NULL or not self.fire(unit, window, waited_in, precision_ms):
                    break
                number += 1
                if noted.buf != NULL:
                    KEEP_ORDER()
                    store32(<uint8_t *>noted.buf, <uint32_t>number)
        finally:
            if noted.buf != NULL:
                PyBuffer_Release(&noted)
            if places.buf != NULL:
                PyBuffer_Release(&places)
            window.close()
            units.close()
            self.close()
        return number - first, self.tallies()

    cdef bint fire(self, const uint8_t *unit, Window window, bytes waited_in, int64_t precision_ms) except -1:
        """False if it is no plain unit, or its message is unusual."""
        cdef Record record
        cdef Goal goal
        cdef uint8_t told[MOST_TOLD]
        cdef int64_t put_at_ms = load64(unit + 16), due_ms, size = <int32_t>load32(unit + 36)
        cdef int64_t fires_ms = put_at_ms + <int32_t>load32(unit + 24)
        cdef const uint8_t *data
        if load32(unit) != UNIT_BYTES or load32(unit + 12) != PLAIN_UNIT or fires_ms < 0:
            return False
        data = self.find(window, load64(unit + 28), size)
        if data == NULL or not is_waiting(data, size, waited_in, &record, &goal):
            return False
        # One that is due later was stored where another was when the unit was put, and has a unit of its own.
        if not read_number(goal.due, goal.due_bytes, 0, (fires_ms // precision_ms + 1) * precision_ms - 1, &due_ms):
            return False
        if was_told(&record):
            return False
        record.prepared_offset = 0
        record.more_properties = told
        record.more_properties_bytes = write_told(told, put_at_ms, self.stored_at_ms) - told
        return self.append(&record, &goal) != 0

    cdef const uint8_t *find(self, Window window, int64_t offset, int64_t size) except? NULL:
        return window.find(offset, size) if offset >= 0 and size <= self.readable_end - offset else NULL

    cdef list tallies(self):
        return [(topic, (<Tally>tally).messages, (<Tally>tally).record_bytes) for topic, tally in self.sent.items()]

    # ---- a run

    cdef bint open(self) except -1:
        log = self.log
        self.tail.at = log.end
        self.tail.prepared_to = log.prepared_to
        if log.is_special or self.tail.at + HEAD_BYTES + BLANK_BYTES > self.tail.prepared_to:
            return False
        self.readable_end = log.readable_end
        self.begin(self.now_ms())
        PyObject_GetBuffer(log.memory, &self.view, PyBUF_CONTIG)
        self.tail.memory = <uint8_t *>self.view.buf
        self.tail.memory_start = log.segment_start
        return True

    cdef int begin(self, stored_at) except -1:
        """A run in which others append as well: they say where the log ends before each, and heed where it ends afterwards."""
        log = self.log
        self.most_body = log.max_body_bytes
        self.store_host = log.store_host
        self.next_offsets = log.next_queue_offsets
        self.stored_at = stored_at
        self.stored_at_ms = stored_at
        self.sent = {}
        self.tally = None
        return 0

    cdef int close(self) except -1:
        PyBuffer_Release(&self.view)
        if self.sent:
            self.log.end = self.tail.at
            self.log.last_stored_at_ms = self.stored_at_ms
        return 0

    cdef int64_t append(self, Record *record, const Goal *goal) except -1:
        """As `CommitLog.append` does it: the size; 0, and nothing done, if that has more to look at."""
        cdef uint8_t *properties
        cdef tuple queue
        if not self.choose_topic(goal):
            return 0
        queue = self.queue(record.queue_id)
        known = self.next_offsets.get(queue)
        record.topic = <const uint8_t *>PyBytes_AS_STRING(self.topic_field)
        record.topic_bytes = PyBytes_GET_SIZE(self.topic_field)
        record.magic = <uint32_t>self.topic_magic
        record.queue_offset = 0 if known is None else known
        record.offset = self.tail.at
        record.store_host = <const uint8_t *>PyBytes_AS_STRING(self.store_host)
        record.stored_at_ms = self.stored_at_ms
        record.size = record_bytes(record)
        if (
            record.properties_bytes + record.more_properties_bytes > MOST_PROPERTIES
            or record.body_bytes > self.most_body
        ):
            return 0
        if self.tail.at + record.size + BLANK_BYTES > self.tail.prepared_to:
            self.lacks = record.size
            return 0
        properties = write_record(self.tail.memory + (self.tail.at - self.tail.memory_start), record)
        text = PyBytes_FromStringAndSize(<const char *>properties, record.properties_bytes + record.more_properties_bytes)
        self.note_record((queue, record.offset, record.size, record.queue_offset, record.sys_flag, self.stored_at, text))
        self.next_offsets[queue] = record.queue_offset + 1
        self.tail.at += record.size
        if self.tally is None:
            self.tally = self.sent[self.topic] = Tally()
        self.tally.messages += 1
        self.tally.record_bytes += record.size
        return record.size

    cdef bint choose_topic(self, const Goal *goal) except -1:
        """Nearly always that of the message before."""
        cdef bint is_same = (
            goal.topic_bytes == PyBytes_GET_SIZE(self.topic_name)
            and memcmp(goal.topic, PyBytes_AS_STRING(self.topic_name), goal.topic_bytes) == 0
        )
        if is_same and self.tally is not None:
            return True
        if not is_same:
            if not is_plain(goal.topic, goal.topic_bytes):
                return False
            if goal.topic_bytes == 24 and memcmp(goal.topic, b"RMQ_SYS_TRANS_HALF_TOPIC", 24) == 0:
                return False  # nothing gets there by waiting
            self.topic_name = PyBytes_FromStringAndSize(<const char *>goal.topic, goal.topic_bytes)
            self.topic = PyUnicode_DecodeASCII(<const char *>goal.topic, goal.topic_bytes, NULL)
            self.queues = {}
        self.tally = self.sent.get(self.topic)
        field = self.log.topic_fields.get(self.topic)
        if field is None:
            return False
        self.topic_field = field.data
        self.topic_magic = field.magic
        return True

    cdef tuple queue(self, int64_t queue_id):
        found = self.queues.get(queue_id)
        if found is None:
            found = (self.topic, queue_id)
            if len(self.queues) < MOST_QUEUES:
                self.queues[queue_id] = found
        return <tuple>found


cdef inline bint is_waiting(const uint8_t *data, Py_ssize_t length, bytes waited_in, Record *record, Goal *goal) noexcept:
    record.more_properties_bytes = 0
    return read_waiting(
        data, length, <const uint8_t *>PyBytes_AS_STRING(waited_in), PyBytes_GET_SIZE(waited_in), record, goal
    )


cdef uint8_t *write_told(uint8_t *out, int64_t put_at_ms, int64_t now_ms) noexcept:
    """What a message is told of its wait on the wheel."""
    out = write_number(write_text(out, b"TIMER_ENQUEUE_MS\x01"), put_at_ms)
    out = write_number(write_text(out, b"\x02TIMER_DEQUEUE_MS\x01"), now_ms)
    return write_text(out, b"\x02")
