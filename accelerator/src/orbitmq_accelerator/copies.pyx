"""Sending stored messages on: from the topic in which they waited to the one that they are for.

A delay that is over, a timer that fires and a transaction that is committed do the same: the record is appended again, for the topic and
queue that its properties name. What is unusual (other hosts, a topic that was never stored, a full log file) is not touched, and
None the answer: then whoever asked decodes the message and appends it, as `orbitmq.storage.store.Store.send_on` says.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from orbitmq_accelerator.byte_order cimport load32, load64
from orbitmq_accelerator.command_header cimport is_plain, read_number
from orbitmq_accelerator.record cimport BLANK_BYTES, HEAD_BYTES, MOST_PROPERTIES, Record, record_bytes, write_record
from orbitmq_accelerator.send_header cimport memmem

cdef enum:
    MAGIC_V1 = 0xDAA320A7  # the topic's length in one byte
    MAGIC_V2 = 0xDAA320AB  # in two
    UNUSUAL_FLAGS = 0x4 | 0x10 | 0x20 | 0x80  # prepared or rolled back, IPv6 hosts, inner batch
    VALUE_END = 2
    MOST_QUEUE_ID = 999_999_999


cdef struct Goal:
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *queue_id
    Py_ssize_t queue_id_bytes
    const uint8_t *group
    Py_ssize_t group_bytes
    const uint8_t *due
    Py_ssize_t due_bytes


cdef class Copies:
    """Of one store. Belongs to the thread that appends."""

    cdef object log, now_ms, note_record
    cdef bytes topic_name, topic_field
    cdef str topic
    cdef int64_t topic_magic

    def __init__(self, log, now_ms):
        self.log = log
        self.now_ms = now_ms
        self.note_record = log.recent.append
        self.topic_name = b""

    def send_on(
        self, record, bytes waited_in, bytes told, int64_t stored_by_ms, int64_t due_before_ms, bytes group,
        int64_t queue_offset, int64_t flags,
    ):
        """The topic it is for, the size of its copy and when it was born; None, and nothing done: see `Store.send_on`."""
        cdef Py_buffer view
        if self.log.is_special:
            return None
        PyObject_GetBuffer(record, &view, PyBUF_SIMPLE)
        try:
            return self.copy(
                <const uint8_t *>view.buf, view.len, waited_in, told, stored_by_ms, due_before_ms, group, queue_offset, flags
            )
        finally:
            PyBuffer_Release(&view)

    cdef object copy(
        self, const uint8_t *data, Py_ssize_t length, bytes waited_in, bytes told, int64_t stored_by_ms, int64_t due_before_ms,
        bytes group, int64_t queue_offset, int64_t flags,
    ):
        cdef Record record
        cdef Goal goal
        cdef int64_t number
        cdef const uint8_t *topic
        cdef Py_ssize_t topic_bytes
        topic = read_record(data, length, &record, &topic_bytes)
        if topic == NULL or topic_bytes != PyBytes_GET_SIZE(waited_in) or memcmp(topic, PyBytes_AS_STRING(waited_in), topic_bytes):
            return None
        if record.stored_at_ms > stored_by_ms or (queue_offset >= 0 and record.queue_offset != queue_offset):
            return None
        look_for_goal(record.properties, record.properties_bytes, &goal)
        if not read_number(goal.queue_id, goal.queue_id_bytes, 0, MOST_QUEUE_ID, &record.queue_id):
            return None
        if group is not None and not (
            goal.group_bytes == PyBytes_GET_SIZE(group)
            and memcmp(goal.group, PyBytes_AS_STRING(group), goal.group_bytes) == 0
            and not asks_for_delay(&record)
        ):
            return None
        if due_before_ms and not (
            read_number(goal.due, goal.due_bytes, 0, due_before_ms - 1, &number) and not was_told(&record)
        ):
            return None
        if not self.choose_topic(&goal):
            return None
        if flags:
            record.sys_flag = record.sys_flag & ~<int64_t>0xC | flags
            record.prepared_offset = record.offset
        else:
            record.prepared_offset = 0
        record.more_properties = <const uint8_t *>PyBytes_AS_STRING(told)
        record.more_properties_bytes = PyBytes_GET_SIZE(told)
        return self.append(&record)

    cdef bint choose_topic(self, const Goal *goal) except -1:
        """Nearly always that of the message before."""
        if not (
            goal.topic_bytes == PyBytes_GET_SIZE(self.topic_name)
            and memcmp(goal.topic, PyBytes_AS_STRING(self.topic_name), goal.topic_bytes) == 0
        ):
            if goal.topic == NULL or not is_plain(goal.topic, goal.topic_bytes):
                return False
            if goal.topic_bytes == 24 and memcmp(goal.topic, b"RMQ_SYS_TRANS_HALF_TOPIC", 24) == 0:
                return False  # nothing gets there by waiting
            self.topic_name = PyBytes_FromStringAndSize(<const char *>goal.topic, goal.topic_bytes)
            self.topic = PyUnicode_DecodeASCII(<const char *>goal.topic, goal.topic_bytes, NULL)
        field = self.log.topic_fields.get(self.topic)
        if field is None:
            return False
        self.topic_field = field.data
        self.topic_magic = field.magic
        return True

    cdef object append(self, Record *record):
        """As `CommitLog.append` does it."""
        cdef Py_buffer view
        cdef uint8_t *properties
        cdef int64_t at = self.log.end
        cdef bytes store_host = self.log.store_host
        cdef tuple queue = (self.topic, record.queue_id)
        cdef dict next_offsets = self.log.next_queue_offsets
        known = next_offsets.get(queue)
        record.topic = <const uint8_t *>PyBytes_AS_STRING(self.topic_field)
        record.topic_bytes = PyBytes_GET_SIZE(self.topic_field)
        record.magic = <uint32_t>self.topic_magic
        record.queue_offset = 0 if known is None else known
        record.offset = at
        record.store_host = <const uint8_t *>PyBytes_AS_STRING(store_host)
        record.size = record_bytes(record)
        if (
            record.properties_bytes + record.more_properties_bytes > MOST_PROPERTIES
            or record.body_bytes > <int64_t>self.log.max_body_bytes
            or at + record.size + BLANK_BYTES > <int64_t>self.log.prepared_to
        ):
            return None
        record.stored_at_ms = self.now_ms()
        PyObject_GetBuffer(self.log.memory, &view, PyBUF_CONTIG)
        properties = write_record(<uint8_t *>view.buf + (at - <int64_t>self.log.segment_start), record)
        text = PyBytes_FromStringAndSize(<const char *>properties, record.properties_bytes + record.more_properties_bytes)
        PyBuffer_Release(&view)
        self.log.end = at + record.size
        self.log.last_stored_at_ms = record.stored_at_ms
        next_offsets[queue] = record.queue_offset + 1
        self.note_record((queue, at, record.size, record.queue_offset, record.sys_flag, record.stored_at_ms, text))
        return self.topic, record.size, record.born_at_ms


cdef const uint8_t *read_record(
    const uint8_t *data, Py_ssize_t length, Record *record, Py_ssize_t *topic_bytes
) noexcept nogil:
    """A record of IPv4 hosts that fills `data`: where its topic stands, NULL if it is another."""
    cdef const uint8_t *end = data + length
    cdef const uint8_t *at
    cdef const uint8_t *topic
    if length < HEAD_BYTES + 3 or load32(data) != length:
        return NULL
    record.sys_flag = <int32_t>load32(data + 36)
    record.body_bytes = <int32_t>load32(data + 84)
    if record.sys_flag & UNUSUAL_FLAGS or not 0 <= record.body_bytes <= length - HEAD_BYTES - 3:
        return NULL
    record.body_crc = load32(data + 8)
    record.flag = <int32_t>load32(data + 16)
    record.queue_offset = load64(data + 20)
    record.offset = load64(data + 28)
    record.born_at_ms = load64(data + 40)
    record.born_host = data + 48
    record.stored_at_ms = load64(data + 56)
    record.reconsume_times = <int32_t>load32(data + 72)
    record.body = data + HEAD_BYTES
    at = record.body + record.body_bytes
    if load32(data + 4) == MAGIC_V1:
        topic_bytes[0] = at[0]
        at += 1
    elif load32(data + 4) == MAGIC_V2:
        topic_bytes[0] = at[0] << 8 | at[1]
        at += 2
    else:
        return NULL
    topic = at
    if topic_bytes[0] + 2 > end - at:
        return NULL
    at += topic_bytes[0]
    record.properties_bytes = at[0] << 8 | at[1]
    record.properties = at + 2
    if record.properties_bytes != end - at - 2 or not record.properties_bytes or (end - 1)[0] != VALUE_END:
        return NULL
    return topic


cdef void look_for_goal(const uint8_t *text, Py_ssize_t length, Goal *goal) noexcept nogil:
    """Of two with one name the later counts; one without a value is none."""
    cdef const uint8_t *end = text + length
    cdef const uint8_t *stop
    goal.topic = goal.queue_id = goal.group = goal.due = NULL
    goal.topic_bytes = goal.queue_id_bytes = goal.group_bytes = goal.due_bytes = 0
    while text < end:
        stop = <const uint8_t *>memchr(text, VALUE_END, end - text)
        if stop == NULL:
            stop = end
        if stop - text > 11 and memcmp(text, b"REAL_TOPIC\x01", 11) == 0:
            goal.topic = text + 11
            goal.topic_bytes = stop - goal.topic
        elif stop - text > 9 and memcmp(text, b"REAL_QID\x01", 9) == 0:
            goal.queue_id = text + 9
            goal.queue_id_bytes = stop - goal.queue_id
        elif stop - text > 7 and memcmp(text, b"PGROUP\x01", 7) == 0:
            goal.group = text + 7
            goal.group_bytes = stop - goal.group
        elif stop - text > 13 and memcmp(text, b"TIMER_OUT_MS\x01", 13) == 0:
            goal.due = text + 13
            goal.due_bytes = stop - goal.due
        text = stop + 1


cdef bint says(const Record *record, const char *text, size_t length) noexcept nogil:
    return memmem(record.properties, record.properties_bytes, text, length) != NULL


cdef bint asks_for_delay(const Record *record) noexcept nogil:
    """`sending.asks_for_delay`"""
    return says(record, b"DELAY\x01", 6) or says(record, b"TIMER_", 6)


cdef bint was_told(const Record *record) noexcept nogil:
    """Whether it says of an earlier wait what it is to be told of this one."""
    return says(record, b"TIMER_ENQUEUE_MS", 16) or says(record, b"TIMER_DEQUEUE_MS", 16) or says(record, b"TIMER_ROLL_TIMES", 16)
