"""The usual sends of one read: frames in, records into the log, receipts out.

What `orbitmq.broker.handlers.send_express` does for one request at a time, for a run of them, without making an object of anything
but what the indexes need. A run ends before the first frame that is unusual in any way: another code, an option, a character
beyond ASCII, a property with a meaning, a full log file. That frame and what follows it go the ordinary way, which knows all
of this better. Nothing has changed for it then.

Behind access control the same is done for sends that are signed, by users who may (`orbitmq.access.express`). A signature that is not
right is unusual as well: the ordinary way refuses it, and says why.

A record is written as `CommitLog.append` writes it: the eight bytes that make it a record are stored last.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #define KEEP_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    """
    void KEEP_ORDER() noexcept nogil

from orbitmq_accelerator.byte_order cimport load32, store32, store64
from orbitmq_accelerator.send_header cimport (
    ACCESS_KEY, LETTERS, SECURITY_TOKEN, SIGNATURE, Send, Text, contains, find_unique_key, memmem, read_binary, read_json
)
from orbitmq_accelerator.signatures cimport (
    SIGNATURE_CHARACTERS, finish, is_same, prepare, sha1_add, sha1_choose, sha1_go_on, sha1_pieces
)

from orbitmq.broker.handlers.send_express import pay_run
from orbitmq.broker.sending import packed_host
from orbitmq.errors import OrbitError

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    HEAD_BYTES = 88  # of a record, before its body
    BLANK_BYTES = 8
    MOST_PROPERTIES = 32767
    MOST_NUMBERS = 160  # bytes of a receipt that are not text of its own: the prefix, names, numbers
    SEPARATOR = 2  # behind each property
    SEND_MESSAGE_V2 = 310
    TOPIC = 1  # the letter b
    # The letters a to h: what a send must say.
    NEEDED = 0xFF
    SIGNED = (1 << ACCESS_KEY) | (1 << SIGNATURE)
    MOST_KEYS = 10_000  # askers can name topics without end

cdef uint32_t CRC[8][256]
cdef tuple NOTHING = (0, b"")
cdef const char *HEX = b"0123456789ABCDEF"


cdef void make_crc_tables() noexcept:
    cdef uint32_t value
    cdef int index, bit, table
    for index in range(256):
        value = index
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0)
        CRC[0][index] = value
    for index in range(256):
        for table in range(1, 8):
            value = CRC[table - 1][index]
            CRC[table][index] = (value >> 8) ^ CRC[0][value & 0xFF]


make_crc_tables()
sha1_choose(True)


def use_instructions_for_signatures(bint allow):
    """Whether the processor's own are used now. They are where there are any; tests compare both."""
    return sha1_choose(allow)


cdef uint32_t crc31(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """CRC-32 without its top bit, eight bytes a step."""
    cdef uint32_t value = 0xFFFFFFFFu, low, high
    while length >= 8:
        memcpy(&low, data, 4)
        memcpy(&high, data + 4, 4)
        low ^= value
        value = (
            CRC[7][low & 0xFF] ^ CRC[6][low >> 8 & 0xFF] ^ CRC[5][low >> 16 & 0xFF] ^ CRC[4][low >> 24]
            ^ CRC[3][high & 0xFF] ^ CRC[2][high >> 8 & 0xFF] ^ CRC[1][high >> 16 & 0xFF] ^ CRC[0][high >> 24]
        )
        data += 8
        length -= 8
    while length:
        value = (value >> 8) ^ CRC[0][(value ^ data[0]) & 0xFF]
        data += 1
        length -= 1
    return ~value & 0x7FFFFFFFu


cdef uint8_t *write_text(uint8_t *out, bytes text) noexcept:
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out + PyBytes_GET_SIZE(text)


cdef uint8_t *write_number(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    if value < 0:
        out[0] = c"-"
        out += 1
        value = -value
    while True:
        digits[count] = c"0" + value % 10
        count += 1
        value //= 10
        if value == 0:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef uint8_t *write_hex(uint8_t *out, uint64_t value) noexcept nogil:
    cdef int shift
    for shift in range(60, -4, -4):
        out[0] = HEX[(value >> shift) & 15]
        out += 1
    return out


cdef class Key:
    """What one user signs sends to one topic with, from an address where that is allowed."""

    def __init__(self, bytes user, str topic, tuple first_blocks):
        cdef bytes inner = first_blocks[0], outer = first_blocks[1]
        self.user = user
        self.topic = topic
        prepare(
            &self.states, <const uint8_t *>PyBytes_AS_STRING(inner), <const uint8_t *>PyBytes_AS_STRING(outer)
        )


cdef class SwiftSends:
    """A swift handler: see orbitmq/transport/express.py. Its state stands in sends.pxd."""

    def __cinit__(self):
        self.answers_room = 1 << 16
        self.answers = <uint8_t *>malloc(self.answers_room)
        self.properties_room = 1 << 17
        self.properties = <uint8_t *>malloc(self.properties_room)
        if self.answers == NULL or self.properties == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.answers)
        free(self.properties)

    def __init__(self, sending, durability, receipts, now_ms, served, door=None):
        self.sending = sending
        self.store = sending.store
        self.log = sending.store.log
        self.durability = durability
        self.receipts = receipts
        self.now_ms = now_ms
        self.served = served
        self.next_offsets = self.log.next_queue_offsets
        self.note_record = self.log.recent.append
        self.topic_name = b""
        self.door = door
        self.keys = {}

    def __call__(self, connection, bytes data):
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t taken, length = PyBytes_GET_SIZE(data)
        if not begins_with_a_send(start, length):
            return NOTHING
        born_host = host_of(connection)
        if born_host is None or not self.open_run():
            return NOTHING
        try:
            taken = self.take_frames(connection, born_host, start, length)
        finally:
            self.close_run()
        if not taken:
            return NOTHING
        if self.immediate:
            return taken, self.receipts_so_far()
        self.pay_later(connection)
        return taken, b""

    cdef bint open_run(self) except -1:
        """False if no send can be taken now. A run may take frames of several connections; until it is closed nothing else may append."""
        log = self.log
        if self.store.health.refuses_writes or log.is_special:
            return False
        self.immediate = self.durability.is_immediate
        if not self.has_room():
            return False
        self.prepared_to = log.prepared_to
        self.at = log.end
        if self.at + HEAD_BYTES + BLANK_BYTES > self.prepared_to:
            return False
        self.memory_start = log.segment_start
        self.most_body = log.max_body_bytes
        self.store_host = log.store_host
        self.suffix = self.sending.suffix
        self.stored_at_ms = self.now_ms()
        self.topic = None
        self.appended = 0
        PyObject_GetBuffer(log.memory, &self.view, PyBUF_CONTIG)
        self.memory = <uint8_t *>self.view.buf
        return True

    cdef bint has_room(self) except -1:
        return self.immediate or self.durability.has_room

    cdef Py_ssize_t take_frames(self, connection, bytes born_host, const uint8_t *start, Py_ssize_t length) except -1:
        """How many bytes at the front were usual sends; `frames` of them, whose receipts are in `answers`."""
        cdef Py_ssize_t taken = 0, frame_bytes, header_bytes
        cdef uint32_t word
        cdef const uint8_t *frame
        self.born_host = born_host
        self.answered = self.frames = 0
        if self.door is not None and not self.enter(connection):
            return 0
        while length - taken >= PREFIX_BYTES:
            frame = start + taken
            frame_bytes = <Py_ssize_t>load32(frame) + 4
            word = load32(frame + 4)
            header_bytes = word & 0xFFFFFF
            if (
                frame_bytes > length - taken
                or header_bytes + PREFIX_BYTES > frame_bytes
                or not self.take(
                    frame + PREFIX_BYTES, header_bytes, word >> 24, frame_bytes - PREFIX_BYTES - header_bytes
                )
            ):
                break
            taken += frame_bytes
            self.frames += 1
            self.appended += 1
        return taken

    cdef int close_run(self) except -1:
        """What was taken is part of the log from here on, and counted."""
        PyBuffer_Release(&self.view)
        if not self.appended:
            return 0
        self.log.end = self.at
        self.log.last_stored_at_ms = self.stored_at_ms
        self.count_topic()
        self.store.appended(self.appended)
        if self.immediate:
            if not self.served.fresh:
                self.served.unsettled.append(self.served)
            self.served.fresh += self.appended
        return 0

    cdef bytes receipts_so_far(self):
        return PyBytes_FromStringAndSize(<const char *>self.answers, self.answered)

    cdef int pay_later(self, connection) except -1:
        """The receipts leave when the disk, or slaves, have the messages."""
        pay_run(connection, self.durability, self.at, self.receipts_so_far(), self.frames)
        return 0

    cdef bint take(
        self, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec, Py_ssize_t body_bytes
    ) except -1:
        """One request: false, and nothing done, if it is unusual."""
        cdef Send send
        cdef Py_ssize_t properties_bytes, size, key_bytes = 0
        cdef const uint8_t *unique_key
        cdef int64_t queue_offset
        if not 0 < body_bytes <= self.most_body or header_bytes >= self.properties_room:
            return False
        send.properties = self.properties
        send.properties_bytes = send.seen = 0
        send.code = send.opaque = send.command_flag = send.reconsume_times = 0
        if not (
            read_json(&send, header, header_bytes) if codec == 0
            else codec == 1 and read_binary(&send, header, header_bytes)
        ):
            return False
        if send.code != SEND_MESSAGE_V2 or send.command_flag != 0 or send.seen & NEEDED != NEEDED:
            return False
        if send.properties_bytes and send.properties[send.properties_bytes - 1] != SEPARATOR:
            send.properties[send.properties_bytes] = SEPARATOR
            send.properties_bytes += 1
        if has_meaning(&send, self.immediate):
            return False
        unique_key = find_unique_key(&send, &key_bytes)
        properties_bytes = send.properties_bytes + PyBytes_GET_SIZE(self.suffix)
        if unique_key == NULL or properties_bytes > MOST_PROPERTIES or not self.choose_topic(&send):
            return False
        if self.door is not None and not self.is_rightly_signed(&send, header + header_bytes, body_bytes):
            return False
        size = HEAD_BYTES + body_bytes + PyBytes_GET_SIZE(self.topic_field) + 2 + properties_bytes
        if send.queue_id >= len(self.queue_keys) or self.at + size + BLANK_BYTES > self.prepared_to:
            return False

        queue = self.queue_keys[send.queue_id]
        known = self.next_offsets.get(queue)
        queue_offset = 0 if known is None else known
        self.write_receipt(&send, queue_offset, unique_key, key_bytes)
        properties = self.write_record(&send, queue_offset, header + header_bytes, body_bytes, properties_bytes, size)
        self.note_record((queue, self.at, size, queue_offset, send.sys_flag, self.stored_at_ms, properties))
        self.next_offsets[queue] = queue_offset + 1
        self.topic_records += 1
        self.topic_record_bytes += size
        self.at += size
        return True

    cdef bint choose_topic(self, Send *send) except -1:
        """Nearly always that of the message before. False if it is not one for plain messages."""
        cdef Text name = send.values[TOPIC]
        cdef bint is_known = is_text_of(name, self.topic_name)
        if is_known and self.topic is not None:
            return True
        self.count_topic()
        if not is_known:
            self.topic_name = PyBytes_FromStringAndSize(<const char *>name.start, name.length)
            self.topic_text = PyUnicode_DecodeASCII(<const char *>name.start, name.length, NULL)
        self.topic = self.sending.plain_topic(self.topic_text)
        field = self.log.topic_fields.get(self.topic_text)
        if self.topic is None or field is None:
            self.topic = None
            return False
        self.queue_keys = self.topic.queue_keys
        self.topic_field = field.data
        self.topic_magic = field.magic
        return True

    cdef bint enter(self, connection) except -1:
        """False if more than signatures has to be looked at."""
        if self.door.counts_requests:
            return False
        generation = self.door.generation
        if generation != self.generation:
            self.keys.clear()
            self.generation = generation
            self.key = None
        source = connection.peer.host
        if source != self.source:
            self.source = source
            self.key = None
        return True

    cdef bint is_rightly_signed(self, Send *send, const uint8_t *body, Py_ssize_t body_bytes) except -1:
        cdef sha1_pieces content
        cdef uint8_t wanted[SIGNATURE_CHARACTERS]
        cdef Text *value = send.values
        cdef int letter
        if (
            send.seen & SIGNED != SIGNED
            or value[SIGNATURE].length != SIGNATURE_CHARACTERS
            or not self.choose_key(value[ACCESS_KEY])
        ):
            return False
        # In the order of their names: capitals come first.
        sha1_go_on(&content, self.key.states.inner)
        sha1_add(&content, value[ACCESS_KEY].start, value[ACCESS_KEY].length)
        if send.seen & (1u << SECURITY_TOKEN):
            sha1_add(&content, value[SECURITY_TOKEN].start, value[SECURITY_TOKEN].length)
        for letter in range(LETTERS):
            if send.seen & (1u << letter):
                sha1_add(&content, value[letter].start, value[letter].length)
        sha1_add(&content, body, body_bytes)
        finish(&self.key.states, &content, wanted)
        return is_same(wanted, value[SIGNATURE].start)

    cdef bint choose_key(self, Text user) except -1:
        """Nearly always that of the message before. False if this user may not send to the topic, as far as is known."""
        if self.key is not None and self.key.topic is self.topic_text and is_text_of(user, self.key.user):
            return True
        name = PyBytes_FromStringAndSize(<const char *>user.start, user.length)
        asker = (name, self.topic_text, self.source)
        self.key = self.keys.get(asker)
        if self.key is None:
            first_blocks = self.door.first_blocks(SEND_MESSAGE_V2, name.decode("ascii"), self.topic_text, self.source)
            if first_blocks is None:
                return False
            if len(self.keys) >= MOST_KEYS:
                self.keys.clear()
            self.key = Key(name, self.topic_text, first_blocks)
            self.keys[asker] = self.key
        self.key.topic = self.topic_text  # the very object, which is the quickest to know again
        return True

    cdef int count_topic(self) except -1:
        if self.topic is not None and self.topic_records:
            self.topic.count_run(self.topic_records, self.topic_record_bytes)
        self.topic_records = self.topic_record_bytes = 0
        return 0

    cdef bytes write_record(
        self, Send *send, int64_t queue_offset, const uint8_t *body, Py_ssize_t body_bytes, Py_ssize_t properties_bytes,
        Py_ssize_t size,
    ):
        """At the end of the log, with what makes it a record last. Its properties."""
        cdef uint8_t *record = self.memory + (self.at - self.memory_start)
        cdef uint8_t *out
        store32(record + 8, crc31(body, body_bytes))
        store32(record + 12, <uint32_t>send.queue_id)
        store32(record + 16, <uint32_t>send.flag)
        store64(record + 20, queue_offset)
        store64(record + 28, self.at)
        store32(record + 36, <uint32_t>send.sys_flag)
        store64(record + 40, send.born_at_ms)
        memcpy(record + 48, PyBytes_AS_STRING(self.born_host), 8)
        store64(record + 56, self.stored_at_ms)
        memcpy(record + 64, PyBytes_AS_STRING(self.store_host), 8)
        store32(record + 72, <uint32_t>send.reconsume_times)
        store64(record + 76, 0)  # of a prepared transaction
        store32(record + 84, <uint32_t>body_bytes)
        memcpy(record + HEAD_BYTES, body, body_bytes)
        out = write_text(record + HEAD_BYTES + body_bytes, self.topic_field)
        out[0] = properties_bytes >> 8
        out[1] = properties_bytes & 0xFF
        memcpy(out + 2, send.properties, send.properties_bytes)
        write_text(out + 2 + send.properties_bytes, self.suffix)
        properties = PyBytes_FromStringAndSize(<const char *>out + 2, properties_bytes)
        KEEP_ORDER()
        store32(record + 4, <uint32_t>self.topic_magic)
        store32(record, <uint32_t>size)
        return properties

    cdef int write_receipt(
        self, Send *send, int64_t queue_offset, const uint8_t *unique_key, Py_ssize_t key_bytes
    ) except -1:
        cdef bytes before_id = self.receipts.before_id, behind_key = self.receipts.behind_key
        cdef bytes behind_opaque = self.receipts.behind_opaque
        cdef uint8_t *frame
        cdef uint8_t *out
        self.make_room(
            PyBytes_GET_SIZE(before_id) + key_bytes + PyBytes_GET_SIZE(behind_key) + PyBytes_GET_SIZE(behind_opaque) + MOST_NUMBERS
        )
        frame = self.answers + self.answered
        out = write_text(frame + PREFIX_BYTES, before_id)
        out = write_hex(out, self.at)
        out = write_text(out, b'","queueId":"')
        out = write_number(out, send.queue_id)
        out = write_text(out, b'","queueOffset":"')
        out = write_number(out, queue_offset)
        out = write_text(out, b'","transactionId":"')
        memcpy(out, unique_key, key_bytes)
        out[key_bytes] = c'"'
        out = write_text(out + key_bytes + 1, behind_key)
        out = write_number(out, send.opaque)
        out = write_text(out, behind_opaque)
        store32(frame, <uint32_t>(out - frame - 4))
        store32(frame + 4, <uint32_t>(out - frame - PREFIX_BYTES))
        self.answered += out - frame
        return 0

    cdef int make_room(self, Py_ssize_t more) except -1:
        cdef uint8_t *larger
        if self.answered + more > self.answers_room:
            larger = <uint8_t *>realloc(self.answers, 2 * (self.answered + more))
            if larger == NULL:
                raise MemoryError
            self.answers = larger
            self.answers_room = 2 * (self.answered + more)
        return 0


cdef inline bint is_text_of(Text text, bytes known) noexcept:
    return text.length == PyBytes_GET_SIZE(known) and memcmp(text.start, PyBytes_AS_STRING(known), text.length) == 0


cdef bint has_meaning(Send *send, bint immediate) noexcept nogil:
    """Whether properties ask for more than to be stored."""
    return (
        contains(send, b"DELAY\x01", 6) or contains(send, b"TIMER_", 6) or contains(send, b"TRAN_MSG\x01", 9)
        or contains(send, b"INNER_NUM\x01", 10)
        or (not immediate and may_not_wait(send))
    )


cdef bint may_not_wait(Send *send) noexcept nogil:
    """Whether the sender says anything about waiting but once that it does."""
    cdef const uint8_t *end = send.properties + send.properties_bytes
    cdef const uint8_t *said = <const uint8_t *>memmem(send.properties, send.properties_bytes, b"WAIT\x01", 5)
    if said == NULL:
        return False
    if end - said < 10 or memcmp(said, b"WAIT\x01true\x02", 10) != 0:
        return True
    return memmem(said + 5, end - said - 5, b"WAIT\x01", 5) != NULL


cdef bytes host_of(connection):
    """As records have it; None if it has no address, or a long one."""
    try:
        host = packed_host(*connection.peer)
    except OrbitError:
        return None
    return host if PyBytes_GET_SIZE(host) == 8 else None


cdef bint begins_with_a_send(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """A glance, so that other requests lose no time here."""
    if length < 24:
        return False
    if data[4] == 0:
        return memcmp(data + 8, b'{"code":310', 11) == 0
    return data[4] == 1 and data[8] == 1 and data[9] == 0x36
