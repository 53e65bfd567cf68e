"""The book of leases: checkpoints and acks, written as `orbitmq.broker.leases.lease_log` writes them, and what is remembered and counted of them.

Both are messages to the timer topic. Here their texts are put together without a struct, a string or a JSON encoder for each, and they are stored
as `Store.append` does it, which is asked where there is more to look at. Names come from requests that were found to hold nothing that JSON would
escape.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp

from orbitmq_accelerator.command_header cimport Text, is_plain
from orbitmq_accelerator.record cimport BLANK_BYTES, MOST_PROPERTIES, Record, record_bytes, write_record
from orbitmq_accelerator.text cimport write_number, write_text

from zlib import crc32

from orbitmq.broker import names, statistics
from orbitmq.broker.leases.lease_log import BEFORE_ACKS_MS
from orbitmq.storage.store import DISPATCH_AT

cdef enum:
    MOST_PARTIES = 10_000  # askers can name groups without end
    CRC_BITS = 0x7FFFFFFF  # of a body's checksum, that a record keeps

cdef int64_t BEFORE_ACKS = BEFORE_ACKS_MS
cdef Py_ssize_t MOST_RECENT = DISPATCH_AT
cdef str TIMER_TOPIC = names.TIMER_TOPIC
cdef tuple TIMER_QUEUE = (TIMER_TOPIC, 0)
cdef str REVIVE_IN_NUMS = statistics.REVIVE_IN_NUMS
cdef str GROUP_CK_NUMS = statistics.GROUP_CK_NUMS
cdef str BROKER_CK_NUMS = statistics.BROKER_CK_NUMS
cdef str GROUP_ACK_NUMS = statistics.GROUP_ACK_NUMS
cdef str BROKER_ACK_NUMS = statistics.BROKER_ACK_NUMS


cdef class Answers:
    """Frames, one behind the other. `length` may be set back."""

    def __cinit__(self):
        self.room = 1 << 14
        self.data = <uint8_t *>malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *reserve(self, Py_ssize_t more) except NULL:
        """Where the next byte goes; so many have room there. It holds until the next `reserve`."""
        cdef uint8_t *larger
        if more > self.room - self.length:
            larger = <uint8_t *>realloc(self.data, 2 * (self.length + more))
            if larger == NULL:
                raise MemoryError
            self.data = larger
            self.room = 2 * (self.length + more)
        return self.data + self.length


cdef class Party:
    """A group and the topic that it leases from."""


cdef class LeaseBook:
    """Belongs to the thread that appends."""

    def __init__(self, store, configuration, lease_log, open_leases, stats, now_ms):
        self.store = store
        self.log = store.log
        self.configuration = configuration
        self.lease_log = lease_log
        self.open_leases = open_leases
        self.stats = stats
        self.counters = stats.all_counters
        self.now_ms = now_ms
        self.parties = {}

    cdef bint open(self) except -1:
        """To be asked first; false if the settings are such that nothing can be written here."""
        settings = self.configuration.settings
        if settings is not self.settings:
            self.broker = settings.broker_name
            self.cluster = settings.broker_cluster_name
            self.revive_queues = settings.revive_queue_num
            self.precision_ms = settings.timer_precision_ms
            self.broker_text = plain_text(self.broker)
            self.revive_topic_text = plain_text(self.lease_log.topic)
            self.is_usual = self.broker_text is not None and self.revive_topic_text is not None and self.precision_ms > 0
            self.settings = settings
        return self.is_usual

    cdef Party party(self, Text group, Text topic):
        """None if a name is too long. Both are plain."""
        cdef Party party = self.last_party
        if party is not None and is_same(party.group_text, group) and is_same(party.topic_text, topic):
            return party
        if group.length > MOST_NAME or topic.length > MOST_NAME:
            return None
        group_name = PyUnicode_DecodeASCII(<const char *>group.start, group.length, NULL)
        topic_name = PyUnicode_DecodeASCII(<const char *>topic.start, topic.length, NULL)
        party = self.parties.get((group_name, topic_name))
        if party is None:
            party = Party()
            party.group, party.topic = group_name, topic_name
            party.group_text, party.topic_text = group_name.encode(), topic_name.encode()
            party.name = f"{topic_name}@{group_name}"
            party.name_of_leases = f"{party.name}@CK"
            party.name_of_acks = f"{party.name}@ACK"
            if len(self.parties) >= MOST_PARTIES:
                self.parties.clear()
            self.parties[group_name, topic_name] = party
        self.last_party = party
        return party

    cdef tuple key(self, Party party, const Lot *lot):
        """`checkpoints.LeaseKey`"""
        return (party.topic, party.group, lot.queue_id, lot.start, lot.pop_time_ms, self.broker)

    cdef int count(self, str name, str key, int64_t value) except -1:
        """`Counter.add`, of one that there nearly always is."""
        counter = self.counters.get((name, key))
        if counter is None:
            counter = self.stats.counter(name, key)
        counter.value = counter.value + value
        counter.times = counter.times + 1
        return 0

    cdef int lease(self, Party party, const Lot *lot, int64_t now_ms) except -1:
        """What `Popping._take` remembers of messages that lie side by side, but for the group's position. StorageError, and nothing done."""
        cdef uint8_t *out = self.body
        cdef const uint8_t *body_end
        cdef int64_t number, count = lot.next - lot.start
        self.count(REVIVE_IN_NUMS, party.name_of_leases, 1)
        out = write_text(write_text(out, b'{"bm":0,"bn":"'), self.broker_text)
        out = write_text(write_text(out, b'","c":"'), party.group_text)
        out = write_text(out, b'","d":[')
        for number in range(count):
            if number:
                out[0] = c","
                out += 1
            out = write_number(out, number)
        out = write_number(write_text(out, b'],"it":'), lot.invisible_ms)
        out = write_number(write_text(out, b',"n":'), count)
        out = write_number(write_text(out, b',"pt":'), lot.pop_time_ms)
        out = write_number(write_text(out, b',"q":'), lot.queue_id)
        out = write_number(write_text(out, b',"reviveTime":'), lot.pop_time_ms + lot.invisible_ms)
        out = write_number(write_text(out, b',"ro":0,"so":'), lot.start)
        out = write_text(write_text(out, b',"t":"'), party.topic_text)
        out = write_text(out, b'"}')
        body_end = out
        out = write_text(self.properties, b"TAGS\x01ck\x02UNIQ_KEY\x01")
        out = write_unique_key(out, party, lot, lot.start, self.broker_text)
        out = write_number(write_text(out, b"@ck\x02ORBITMQ_NEXT\x01"), lot.next)
        out = write_text(out, b"\x02")
        self.append(lot, body_end, out, lot.pop_time_ms + lot.invisible_ms - BEFORE_ACKS, now_ms)
        self.open_leases.put(self.key(party, lot), range(lot.start, lot.next))
        self.count(GROUP_CK_NUMS, party.name, 1)
        self.count(BROKER_CK_NUMS, self.cluster, 1)
        return 0

    cdef int ack(
        self, Party party, const Lot *lot, object lease, const int64_t *offsets, int count, object bits, int64_t now_ms
    ) except -1:
        """`Settling._write`. StorageError, and nothing done."""
        cdef uint8_t *out = self.body
        cdef const uint8_t *body_end
        cdef bint is_batch = count > 1
        cdef int number
        self.count(REVIVE_IN_NUMS, party.name_of_acks, 1)
        out = write_number(write_text(out, b'{"ao":'), -1 if is_batch else offsets[0])
        if is_batch:
            out = write_text(out, b',"aol":[')
            for number in range(count):
                if number:
                    out[0] = c","
                    out += 1
                out = write_number(out, offsets[number])
            out = write_text(out, b"]")
        out = write_text(write_text(out, b',"bn":"'), self.broker_text)
        out = write_text(write_text(out, b'","c":"'), party.group_text)
        out = write_number(write_text(out, b'","pt":'), lot.pop_time_ms)
        out = write_number(write_text(out, b',"q":'), lot.queue_id)
        out = write_number(write_text(out, b',"so":'), lot.start)
        out = write_text(write_text(out, b',"t":"'), party.topic_text)
        out = write_text(out, b'"}')
        body_end = out
        out = write_text(self.properties, b"TAGS\x01bAck\x02UNIQ_KEY\x01" if is_batch else b"TAGS\x01ack\x02UNIQ_KEY\x01")
        out = write_unique_key(out, party, lot, -1 if is_batch else offsets[0], self.broker_text)
        out = write_text(out, b"@ack\x02")
        self.append(lot, body_end, out, lot.pop_time_ms + lot.invisible_ms, now_ms)
        self.settle(party, lot, lease, count, bits)
        self.count(GROUP_ACK_NUMS, party.name, count)
        self.count(BROKER_ACK_NUMS, self.cluster, count)
        return 0

    cdef int settle(self, Party party, const Lot *lot, object lease, int count, object bits) except -1:
        """`OpenLeases.settle` of messages that were not acknowledged before. Storing the ack may have closed the lease: it wakes who leases more."""
        cdef dict in_flight = self.open_leases.in_flight_by_queue
        cdef tuple queue = (party.topic, party.group, lot.queue_id)
        cdef int64_t left
        lease.acked = lease.acked | bits
        if lease.key not in <dict>self.open_leases.leases:
            return 0
        left = <int64_t>in_flight.get(queue, 0) - count
        if left > 0:
            in_flight[queue] = left
        else:
            in_flight.pop(queue, None)
        return 0

    cdef int append(
        self, const Lot *lot, const uint8_t *body_end, uint8_t *properties, int64_t deliver_ms, int64_t now_ms
    ) except -1:
        """`LeaseLog._write` of what is not due yet; `properties` are written up to there."""
        cdef int64_t due_ms = (deliver_ms - 1) // self.precision_ms * self.precision_ms
        cdef uint8_t *out = write_number(write_text(properties, b"TIMER_DELIVER_MS\x01"), deliver_ms)
        out = write_number(write_text(out, b"\x02TIMER_OUT_MS\x01"), due_ms)
        out = write_text(write_text(out, b"\x02REAL_TOPIC\x01"), self.revive_topic_text)
        out = write_number(write_text(out, b"\x02REAL_QID\x01"), lot.revive_queue)
        out = write_text(out, b"\x02")
        body = PyBytes_FromStringAndSize(<const char *>self.body, body_end - self.body)
        text = PyBytes_FromStringAndSize(<const char *>self.properties, out - self.properties)
        host = self.lease_log.store_host
        if not self.place(body, text, now_ms, host):
            self.store.append(TIMER_TOPIC, 0, body, text, now_ms, host)
        return 0

    cdef bint place(self, bytes body, bytes properties, int64_t now_ms, bytes born_host) except -1:
        """`Store.append`, where nobody waits for a disk: false, and nothing done, if that has more to look at."""
        cdef Record record
        cdef Py_buffer view
        cdef bytes store_host, field_data
        log = self.log
        field = log.topic_fields.get(TIMER_TOPIC)
        if field is None or self.store.health.refuses_writes or log.is_special or PyBytes_GET_SIZE(born_host) != 8:
            return False
        store_host, field_data = log.store_host, field.data
        next_offsets = <dict>log.next_queue_offsets
        known = next_offsets.get(TIMER_QUEUE)
        record.queue_id = record.flag = record.sys_flag = record.reconsume_times = record.prepared_offset = 0
        record.magic = <uint32_t><int64_t>field.magic
        record.queue_offset = 0 if known is None else known
        record.offset = log.end
        record.born_at_ms, record.born_host = now_ms, <const uint8_t *>PyBytes_AS_STRING(born_host)
        record.stored_at_ms, record.store_host = now_ms, <const uint8_t *>PyBytes_AS_STRING(store_host)
        record.body, record.body_bytes = <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
        record.topic, record.topic_bytes = <const uint8_t *>PyBytes_AS_STRING(field_data), PyBytes_GET_SIZE(field_data)
        record.properties, record.properties_bytes = <const uint8_t *>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties)
        record.more_properties_bytes = 0
        record.size = record_bytes(&record)
        if (
            record.offset + record.size + BLANK_BYTES > <int64_t>log.prepared_to
            or record.body_bytes > <int64_t>log.max_body_bytes
            or record.properties_bytes > MOST_PROPERTIES
        ):
            return False
        record.body_crc = <uint32_t>crc32(body) & CRC_BITS
        PyObject_GetBuffer(log.memory, &view, PyBUF_CONTIG)
        write_record(<uint8_t *>view.buf + (record.offset - <int64_t>log.segment_start), &record)
        PyBuffer_Release(&view)
        log.end = record.offset + record.size
        log.last_stored_at_ms = now_ms
        next_offsets[TIMER_QUEUE] = record.queue_offset + 1
        recent = log.recent
        recent.append((TIMER_QUEUE, record.offset, record.size, record.queue_offset, 0, now_ms, properties))
        if len(recent) == 1 or len(recent) >= MOST_RECENT:
            self.store.appended(1)
        return True


cdef inline uint8_t *write_unique_key(
    uint8_t *out, Party party, const Lot *lot, int64_t offset, bytes broker
) noexcept:
    out = write_number(write_text(write_text(out, party.topic_text), b"@"), lot.queue_id)
    out = write_number(write_text(out, b"@"), offset)
    out = write_text(write_text(write_text(out, b"@"), party.group_text), b"@")
    out = write_number(out, lot.pop_time_ms)
    return write_text(write_text(out, b"@"), broker)


cdef inline bint is_same(bytes known, Text text) noexcept:
    return PyBytes_GET_SIZE(known) == text.length and memcmp(PyBytes_AS_STRING(known), text.start, text.length) == 0


cdef bytes plain_text(str name):
    """None if it is long, or needs escapes in JSON."""
    cdef bytes text = name.encode()
    if PyBytes_GET_SIZE(text) > MOST_NAME or not is_plain(<const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
        return None
    return text
