"""A message that waits, as it is stored: its record taken apart, and what its properties say of where and when it is to go."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from orbitmq_accelerator.byte_order cimport load32, load64
from orbitmq_accelerator.command_header cimport read_number
from orbitmq_accelerator.record cimport BODY_LENGTH_AT, HEAD_BYTES, Record
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
    bint waits_again  # `sending.asks_for_delay`


cdef inline const uint8_t *read_record(
    const uint8_t *data, Py_ssize_t length, Record *record, Py_ssize_t *topic_bytes
) noexcept nogil:
    """A record of IPv4 hosts that fills `data`: where its topic stands, NULL if it is another."""
    cdef const uint8_t *end = data + length
    cdef const uint8_t *at
    cdef const uint8_t *topic
    if length < HEAD_BYTES + 3 or load32(data) != length:
        return NULL
    record.sys_flag = <int32_t>load32(data + 36)
    record.body_bytes = <int32_t>load32(data + BODY_LENGTH_AT)
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


cdef inline void look_for_goal(const uint8_t *text, Py_ssize_t length, Goal *goal) noexcept nogil:
    """Of two with one name the later counts; one without a value is none."""
    cdef const uint8_t *end = text + length
    cdef const uint8_t *stop
    goal.topic = goal.queue_id = goal.group = goal.due = NULL
    goal.topic_bytes = goal.queue_id_bytes = goal.group_bytes = goal.due_bytes = 0
    goal.waits_again = False
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
        elif stop - text > 6 and memcmp(text, b"TIMER_", 6) == 0:
            goal.waits_again = True
            if stop - text > 13 and memcmp(text, b"TIMER_OUT_MS\x01", 13) == 0:
                goal.due = text + 13
                goal.due_bytes = stop - goal.due
        elif stop - text >= 6 and memcmp(text, b"DELAY\x01", 6) == 0:
            goal.waits_again = True
        text = stop + 1


cdef inline bint read_waiting(
    const uint8_t *data, Py_ssize_t length, const uint8_t *waited_in, Py_ssize_t waited_in_bytes, Record *record, Goal *goal
) noexcept nogil:
    """A record of that topic; `queue_id` is the one that it is for. False if it is another, or does not say where it is to go."""
    cdef Py_ssize_t topic_bytes
    cdef const uint8_t *topic = read_record(data, length, record, &topic_bytes)
    if topic == NULL or topic_bytes != waited_in_bytes or memcmp(topic, waited_in, topic_bytes) != 0:
        return False
    look_for_goal(record.properties, record.properties_bytes, goal)
    return goal.topic != NULL and read_number(goal.queue_id, goal.queue_id_bytes, 0, MOST_QUEUE_ID, &record.queue_id)


cdef inline bint says(const Record *record, const char *text, size_t length) noexcept nogil:
    return memmem(record.properties, record.properties_bytes, text, length) != NULL


cdef inline bint was_told(const Record *record) noexcept nogil:
    """Whether it says of an earlier wait what it is to be told of this one."""
    return says(record, b"TIMER_ENQUEUE_MS", 16) or says(record, b"TIMER_DEQUEUE_MS", 16) or says(record, b"TIMER_ROLL_TIMES", 16)


cdef inline bint recalls(const Record *record) noexcept nogil:
    """Whether it may take another message back."""
    return says(record, b"TIMER_DEL_UNIQKEY\x01", 18)


cdef inline int64_t seconds_between(int64_t start_ms, int64_t end_ms) noexcept nogil:
    """Rounded down, as Python does it."""
    cdef int64_t span = end_ms - start_ms
    return span // 1000 if span >= 0 else -((999 - span) // 1000)
