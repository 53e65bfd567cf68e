"""A record as the commit log holds it: see orbitmq/message/record.py, which has the layout."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.byte_order cimport store32, store64

cdef extern from *:
    """
    #define KEEP_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    #define PREFETCH(at) __builtin_prefetch(at)
    """
    void KEEP_ORDER() noexcept nogil
    void PREFETCH(const void *at) noexcept nogil  # it need not lie in memory of ours

cdef enum:
    HEAD_BYTES = 88  # of a record with IPv4 hosts, before its body
    BODY_LENGTH_AT = 84
    BLANK_BYTES = 8  # behind the last record of a file
    MOST_PROPERTIES = 32767


cdef struct Record:
    int64_t size
    uint32_t magic
    uint32_t body_crc
    int64_t queue_id
    int64_t flag
    int64_t queue_offset
    int64_t offset  # in the log
    int64_t sys_flag
    int64_t born_at_ms
    const uint8_t *born_host
    int64_t stored_at_ms
    const uint8_t *store_host
    int64_t reconsume_times
    int64_t prepared_offset
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *topic  # with its length before it
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    const uint8_t *more_properties  # behind those
    Py_ssize_t more_properties_bytes


cdef inline int64_t record_bytes(const Record *record) noexcept nogil:
    return (
        HEAD_BYTES + record.body_bytes + record.topic_bytes + 2
        + record.properties_bytes + record.more_properties_bytes
    )


cdef inline uint8_t *write_record(uint8_t *out, const Record *record) noexcept nogil:
    """What makes it a record goes in last. Where its properties begin."""
    cdef uint8_t *behind_body = out + HEAD_BYTES + record.body_bytes
    cdef uint8_t *properties = behind_body + record.topic_bytes + 2
    cdef Py_ssize_t properties_bytes = record.properties_bytes + record.more_properties_bytes
    store32(out + 8, record.body_crc)
    store32(out + 12, <uint32_t>record.queue_id)
    store32(out + 16, <uint32_t>record.flag)
    store64(out + 20, record.queue_offset)
    store64(out + 28, record.offset)
    store32(out + 36, <uint32_t>record.sys_flag)
    store64(out + 40, record.born_at_ms)
    memcpy(out + 48, record.born_host, 8)
    store64(out + 56, record.stored_at_ms)
    memcpy(out + 64, record.store_host, 8)
    store32(out + 72, <uint32_t>record.reconsume_times)
    store64(out + 76, record.prepared_offset)
    store32(out + BODY_LENGTH_AT, <uint32_t>record.body_bytes)
    memcpy(out + HEAD_BYTES, record.body, record.body_bytes)
    memcpy(behind_body, record.topic, record.topic_bytes)
    behind_body[record.topic_bytes] = properties_bytes >> 8
    behind_body[record.topic_bytes + 1] = properties_bytes & 0xFF
    memcpy(properties, record.properties, record.properties_bytes)
    if record.more_properties_bytes:
        memcpy(properties + record.properties_bytes, record.more_properties, record.more_properties_bytes)
    KEEP_ORDER()
    store32(out + 4, record.magic)
    store32(out, <uint32_t>record.size)
    return properties
