"""The usual sends of one read: frames in, records into the log, receipts out.

What `orbitmq.broker.handlers.send_express` does for one request at a time, for a run of them, without making an object of anything
but what the indexes need: single messages, batches, and what has to wait (delay levels, timers, halves of transactions). A run
ends before the first frame that is unusual in any way: another code, an option, a character beyond ASCII, a property with
another meaning, no room on the disk. That frame and what follows it go the ordinary way, which knows all of this better. Nothing
has changed for it then.

Behind access control the same is done for sends that are signed, by users who may (`orbitmq.access.express`). A signature that is not
right is unusual as well: the ordinary way refuses it, and says why.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from orbitmq_accelerator.acks cimport begins_with_a_lease
from orbitmq_accelerator.byte_order cimport load32, store32
from orbitmq_accelerator.command_header cimport Text, is_plain
from orbitmq_accelerator.copies cimport Tail
from orbitmq_accelerator.ends cimport SwiftEnds
from orbitmq_accelerator.record cimport BLANK_BYTES, MOST_PROPERTIES, PREFETCH, Record, record_bytes, write_record
from orbitmq_accelerator.send_header cimport (
    ACCESS_KEY, COMMITTED_FLAG, LETTERS, PREPARED_FLAG, SECURITY_TOKEN, SIGNATURE, Send, contains, find_unique_key,
    has_plain_signature, memmem, read_binary, read_json,
)
from orbitmq_accelerator.signatures cimport (
    SHA1_LANES, SHA1_ROOM_BEHIND, SIGNATURE_CHARACTERS, add_claim, count_right, prepare, sha1_choose, sha1_choose_lanes,
)
from orbitmq_accelerator.text cimport write_base64, write_hex, write_number, write_text
from orbitmq_accelerator.waiting cimport (
    DELAY_LEVEL, HALF_MESSAGE, HAS_HANDLE, IS_INNER_BATCH, TIMER_MOMENT, TIMER_SECONDS, Wish, meaning_of, read_wish,
)

from orbitmq.broker import names
from orbitmq.broker.handlers.send_express import pay_run
from orbitmq.broker.sending import packed_host
from orbitmq.errors import OrbitError, StorageError
from orbitmq.storage.appended import Appended

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    MEMBER_BYTES = 20  # of a batch's member, before its body
    MOST_NUMBERS = 160  # bytes of a receipt that are not text of its own: the prefix, names, numbers
    MOST_HANDLE = 1024
    MOST_ADDED = 1024  # bytes of the properties of what waits: names, numbers, a topic of up to 255, and the next
    MOST_TRANSACTION = 512  # bytes of an id that is said once more
    SEPARATOR = 2  # behind each property
    MOST_BATCH_GROWTH = 16  # as in `orbitmq.storage.commit_log`
    LARGE_BATCH_BYTES = 16 << 10  # the same: less is stored sooner than calls are made
    MOST_COPY_BYTES = 512 << 10  # of batches that are put together beside the log
    MOST_COPIES = 64  # that wait for the indexes
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    TOPIC = 1  # the letter b
    # The letters a to h: what a send must say.
    NEEDED = 0xFF
    SIGNED = (1 << ACCESS_KEY) | (1 << SIGNATURE)
    MOST_KEYS = 10_000  # askers can name topics without end

cdef extern from "crc32.h" nogil:
    enum:
        CRC32_LEAST_BYTES
        CRC32_STEP_BYTES
    bint crc32_has_instructions() noexcept
    uint32_t crc32_by_instruction(uint32_t value, const uint8_t *data, size_t length) noexcept

cdef uint32_t CRC[8][256]
cdef bint crc_by_instruction = crc32_has_instructions()
cdef tuple NOTHING = (0, b"")


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
sha1_choose_lanes(~0)


def use_instructions_for_signatures(bint alone, int together):
    """What is used now: whether the processor's own for one message, and which vectors for several (1 AVX2, 2 AVX-512, 0 none).

    All that there are, unless a test compares them.
    """
    return sha1_choose(alone), sha1_choose_lanes(together)


def use_instructions_for_checksums(bint allow):
    """The same."""
    global crc_by_instruction
    crc_by_instruction = allow and crc32_has_instructions()
    return crc_by_instruction


cdef uint32_t crc31(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """CRC-32 without its top bit."""
    cdef uint32_t value = 0xFFFFFFFFu
    cdef Py_ssize_t size
    if crc_by_instruction and length >= CRC32_LEAST_BYTES:
        size = length - length % CRC32_STEP_BYTES
        value = crc32_by_instruction(value, data, size)
        data += size
        length -= size
    return ~crc_behind(value, data, length) & 0x7FFFFFFFu


cdef uint32_t crc_behind(uint32_t value, const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """CRC-32 of this behind what has come to `value`, eight bytes a step."""
    cdef uint32_t low, high
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
    return value


cdef inline bint read_frame(const uint8_t *at, Py_ssize_t length, Frame *frame) noexcept nogil:
    """False if it is not whole."""
    cdef uint32_t word
    if length < PREFIX_BYTES:
        return False
    word = load32(at + 4)
    frame.size = <Py_ssize_t>load32(at) + 4
    frame.codec = word >> 24
    frame.header = at + PREFIX_BYTES
    frame.header_bytes = word & 0xFFFFFF
    frame.body = frame.header + frame.header_bytes
    frame.body_bytes = frame.size - PREFIX_BYTES - frame.header_bytes
    return frame.size <= length and frame.body_bytes >= 0


cdef class Key:
    """What one user signs sends to one topic with, from an address where that is allowed."""

    def __init__(self, bytes user, str topic, tuple first_blocks):
        cdef bytes inner = first_blocks[0], outer = first_blocks[1]
        self.user = user
        self.topic = topic
        prepare(
            &self.states, <const uint8_t *>PyBytes_AS_STRING(inner), <const uint8_t *>PyBytes_AS_STRING(outer)
        )


cdef class Place:
    """A topic of the broker's own, in which messages wait."""

    def __init__(self, topic, queues):
        self.topic = topic
        self.queue_keys = [(topic, queue_id) for queue_id in range(queues)]


cdef class SwiftSends:
    """A swift handler: see orbitmq/transport/express.py. Its state stands in sends.pxd."""

    def __cinit__(self):
        self.answers_room = 1 << 16
        self.answers = <uint8_t *>malloc(self.answers_room)
        self.properties_room = 1 << 17
        self.properties = <uint8_t *>malloc(self.properties_room)
        # The values of a header, and what else is hashed with them.
        self.content = <uint8_t *>malloc(self.properties_room + SHA1_ROOM_BEHIND)
        if self.answers == NULL or self.properties == NULL or self.content == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.answers)
        free(self.properties)
        free(self.content)

    def __init__(self, sending, durability, receipts, now_ms, served, served_batch, end_transaction=None, SwiftEnds ends=None, door=None, acks=None):
        self.sending = sending
        self.store = sending.store
        self.log = sending.store.log
        self.durability = durability
        self.receipts = receipts
        self.now_ms = now_ms
        self.served = served
        self.served_batch = served_batch
        self.next_offsets = self.log.next_queue_offsets
        self.note_record = self.log.recent.append
        self.notes_batches = self.store.indexes_whole_batches
        self.topic_name = b""
        self.end_transaction = end_transaction
        self.ends = ends
        self.acks = acks
        self.door = door
        self.keys = {}
        self.unstored = []
        self.delayed = Place(names.DELAY_TOPIC, 0)
        self.timers = Place(names.TIMER_TOPIC, 1)
        self.halves = Place(names.HALF_TOPIC, 1)

    def __call__(self, connection, bytes data):
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t taken, length = PyBytes_GET_SIZE(data)
        if not begins_with_a_send(start, length):
            if self.acks is not None and begins_with_a_lease(start, length):
                return self.acks(connection, data)
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
        if self.door is not None and not self.ask_door():
            return False
        self.immediate = self.durability.is_immediate
        if not self.has_room():
            return False
        self.prepared_to = log.prepared_to
        self.at = log.end
        if self.at >= self.prepared_to:
            return False  # nothing was stored in this file yet since it was opened, or there is none
        self.memory_start = log.segment_start
        self.most_body = log.max_body_bytes
        self.store_host = log.store_host
        self.suffix = self.sending.suffix
        self.stored_at = self.now_ms()
        self.stored_at_ms = self.stored_at
        self.before_id, self.host_hex = self.receipts.before_id, self.receipts.host_hex
        self.behind_key, self.behind_opaque = self.receipts.behind_key, self.receipts.behind_opaque
        self.topic = None
        self.knows_terms = False
        self.delayed.field = self.timers.field = self.halves.field = None
        self.appended = self.batches = 0
        self.waiting = len(log.recent)
        PyObject_GetBuffer(log.memory, &self.view, PyBUF_CONTIG)
        self.memory = <uint8_t *>self.view.buf
        return True

    cdef bint has_room(self) except -1:
        return self.immediate or self.durability.has_room

    cdef Py_ssize_t take_frames(self, connection, bytes born_host, const uint8_t *start, Py_ssize_t length) except -1:
        """How many bytes at the front were usual sends; `frames` of them, whose receipts are in `answers`."""
        cdef Frame frame
        cdef Send *send
        self.born_host = born_host
        self.taken = self.answered = self.frames = self.first_code = 0
        self.ahead = self.next_ahead = 0
        self.is_end_ahead = False
        if self.door is not None:
            source = connection.peer.host
            if source is not self.source and source != self.source:
                self.source = source
                self.key = None
        try:
            while read_frame(start + self.taken, length - self.taken, &frame):
                if is_end_of_transaction(start + self.taken, frame.size):
                    if not self.take_end(connection, frame.header, frame.header_bytes):
                        break
                    self.taken += frame.size
                    continue
                send = self.next_send(&frame, start + length)
                if send == NULL or not self.take(send):
                    break
                self.taken += frame.size
                self.frames += 1
                self.appended += 1
                self.batches += self.code == SEND_BATCH_MESSAGE
                if self.frames == 1:
                    self.first_code = self.code
        finally:
            self.store_batches()
        return self.taken

    cdef int close_run(self) except -1:
        """What was taken is part of the log from here on, and counted."""
        PyBuffer_Release(&self.view)
        if not self.appended and len(self.log.recent) == self.waiting:
            return 0
        self.log.end = self.at
        self.log.last_stored_at_ms = self.stored_at_ms
        self.count_topic()
        for place in (self.delayed, self.timers, self.halves):
            self.count_place(place)
        if self.ends is not None:
            self.ends.hand_over()
        self.store.appended(len(self.log.recent) - self.waiting)
        if self.immediate:
            note_served(self.served, self.appended - self.batches)
            note_served(self.served_batch, self.batches)
        return 0

    cdef bytes receipts_so_far(self):
        return PyBytes_FromStringAndSize(<const char *>self.answers, self.answered)

    cdef int pay_later(self, connection) except -1:
        """The receipts leave when the disk, or slaves, have the messages."""
        pay_run(connection, self.durability, self.at, self.receipts_so_far(), self.frames, self.first_code)
        return 0

    # ---- what a frame says

    cdef Send *next_send(self, const Frame *frame, const uint8_t *end) except? NULL:
        """What this frame asks for, by somebody who may; NULL if it is unusual. `end`: of what was read."""
        if self.door is None:
            self.properties_used = 0
            return self.sends_ahead if self.read_send(frame, self.sends_ahead) else NULL
        if self.next_ahead == self.ahead:
            # Before who looks ahead meets another topic: what is taken back then, the requests that it found right stand behind.
            if self.is_end_ahead or not self.store_batches():
                return NULL
            self.look_ahead(frame[0], end)
            if not self.ahead:
                return NULL
        self.next_ahead += 1
        return &self.sends_ahead[self.next_ahead - 1]

    cdef int look_ahead(self, Frame frame, const uint8_t *end) except -1:
        """Read this and what follows, up to what is unusual or not rightly signed: several signatures cost little more than one."""
        cdef uint8_t *room = self.content
        cdef const uint8_t *at
        cdef Send *send = self.sends_ahead
        self.properties_used = self.claims.count = self.next_ahead = 0
        while self.read_send(&frame, send) and frame.header_bytes <= self.content + self.properties_room - room and self.may_send(send):
            room = add_claim(&self.claims, &self.key.states, send, room)
            at = send.body + send.body_bytes
            if (
                self.claims.count == SHA1_LANES
                or not read_frame(at, end - at, &frame)
                or is_end_of_transaction(at, frame.size)  # which is not for us, whatever else it says
            ):
                break
            send += 1
        self.ahead = count_right(&self.claims)
        self.is_end_ahead = self.ahead < self.claims.count
        return 0

    cdef bint read_send(self, const Frame *frame, Send *send) noexcept:
        """False if it is unusual, whoever sent it, or if there is no room for its properties behind those that were read ahead."""
        cdef Py_ssize_t room = frame.header_bytes + PyBytes_GET_SIZE(self.suffix) + MOST_ADDED + 1
        if not 0 < frame.body_bytes or room > self.properties_room - self.properties_used:
            return False
        send.properties = self.properties + self.properties_used
        send.properties[0] = SEPARATOR
        send.properties += 1
        send.properties_bytes = send.seen = 0
        send.reconsume_times = 0
        send.is_batch = False
        send.body = frame.body
        send.body_bytes = frame.body_bytes
        if not (
            read_json(send, frame.header, frame.header_bytes) if frame.codec == 0
            else frame.codec == 1 and read_binary(send, frame.header, frame.header_bytes)
        ):
            return False
        if not (send.envelope.code == SEND_MESSAGE_V2 or send.envelope.code == SEND_BATCH_MESSAGE):
            return False
        if send.envelope.flag != 0 or send.seen & NEEDED != NEEDED:
            return False
        if send.properties_bytes and send.properties[send.properties_bytes - 1] != SEPARATOR:
            send.properties[send.properties_bytes] = SEPARATOR
            send.properties_bytes += 1
        self.properties_used += room
        return True

    cdef bint may_send(self, Send *send) except -1:
        """Whether who it says it is may do this, as far as is known; not whether it is them."""
        return (
            send.envelope.code == SEND_MESSAGE_V2
            and send.seen & SIGNED == SIGNED
            and send.values[SIGNATURE].length == SIGNATURE_CHARACTERS
            and self.choose_topic(send)
            and self.choose_key(send.values[ACCESS_KEY])
        )

    cdef bint take(self, Send *send) except -1:
        """One request: false, and nothing done, if it is unusual."""
        cdef Record record
        cdef Py_ssize_t key_bytes = 0
        cdef const uint8_t *unique_key
        cdef tuple queue
        if not self.immediate and self.first_code and self.first_code != send.envelope.code:
            return False  # receipts that wait are paid together, as those of one code
        self.code = send.envelope.code
        if not self.immediate and may_not_wait(send):
            return False
        unique_key = find_unique_key(send, &key_bytes)
        if unique_key == NULL and not (send.is_batch and not contains(send, b"UNIQ_KEY\x01", 9)):
            return False  # a batch has its members' ids, and few clients give it one of its own
        if not self.choose_topic(send) or send.queue_id >= len(self.queue_keys):
            return False
        if self.door is None and send.seen >> LETTERS and not has_plain_signature(send):
            return False
        write_text(send.properties + send.properties_bytes, self.suffix)
        send.properties_bytes += PyBytes_GET_SIZE(self.suffix)
        if send.is_batch:
            return self.topic_field is not None and self.take_batch(send, unique_key, key_bytes)
        if send.body_bytes > self.most_body or not self.store_batches():
            return False
        self.begin_record(&record, send)
        record.body = send.body
        record.body_bytes = send.body_bytes
        if send.sys_flag & PREPARED_FLAG or has_meaning(send):
            return self.take_waiting(send, &record, unique_key, key_bytes)
        if self.topic_field is None or not self.place_record(&record, send, self.topic_field, self.topic_magic):
            return False
        queue = <tuple>self.queue_keys[send.queue_id]
        record.queue_offset = self.next_offset(queue)
        self.write_receipt(send, &record, unique_key, key_bytes, NULL, 0)
        self.add_record(&record, queue)
        self.topic_records += 1
        self.topic_record_bytes += record.size
        return True

    # ---- what has to wait

    cdef bint take_waiting(
        self, Send *send, Record *record, const uint8_t *unique_key, Py_ssize_t key_bytes
    ) except -1:
        """`Sending._special`: into a topic of the broker's own, with what says where it belongs."""
        cdef Wish wish
        cdef Place place
        cdef tuple queue
        cdef int64_t due_ms = 0
        cdef uint8_t handle[MOST_HANDLE]
        cdef Py_ssize_t handle_bytes = 0
        if send.properties_bytes > MOST_PROPERTIES or not read_wish(send.properties, send.properties_bytes, &wish):
            return False
        if not self.knows_terms:
            self.learn_terms()
        record.queue_id = 0
        if wish.kind == HALF_MESSAGE:
            if not self.takes_halves or key_bytes > MOST_TRANSACTION:
                return False
            place = self.halves
            record.sys_flag &= ~(PREPARED_FLAG | COMMITTED_FLAG)
        elif send.sys_flag & PREPARED_FLAG:
            return False
        elif wish.kind == DELAY_LEVEL:
            if wish.number > self.delay_levels:
                return False
            place = self.delayed
            record.queue_id = wish.number - 1
        else:
            place = self.timers
            due_ms = self.due_ms(&wish)
            if not due_ms or (self.limits_moments and self.sending.is_moment_full(due_ms)):
                return False
            handle_bytes = self.write_handle(handle, due_ms + 1, unique_key, key_bytes)
            if not handle_bytes:
                return False
        if place.field is None and not self.find_field(place):
            return False
        self.say_goal(send, due_ms, unique_key if wish.kind == HALF_MESSAGE else NULL, key_bytes)
        if not self.place_record(record, send, place.field, place.magic):
            return False
        queue = <tuple>place.queue_keys[record.queue_id]
        record.queue_offset = self.next_offset(queue)
        self.write_receipt(send, record, unique_key, key_bytes, handle, handle_bytes)
        self.add_record(record, queue)
        place.records += 1
        place.record_bytes += record.size
        if wish.kind == HALF_MESSAGE:
            self.begin_transaction(record)
        return True

    cdef int begin_transaction(self, const Record *half) except -1:
        if self.ends is not None:
            self.ends.begin(self.topic_text, half)
        else:
            appended = Appended(half.offset, self.at, half.queue_offset, self.stored_at_ms)
            self.sending.on_half_message(appended, self.topic_text)
        return 0

    cdef int learn_terms(self) except -1:
        """They do not change during a run."""
        terms = self.sending.waiting_terms()
        if terms is not self.terms:
            self.delay_levels = terms.delay_levels
            self.takes_halves = terms.takes_halves
            self.takes_timers = terms.takes_timers
            self.longest_timer_ms = terms.longest_timer_ms
            self.timer_precision_ms = terms.timer_precision_ms
            self.limits_moments = terms.limits_moments
            self.broker_name = terms.broker_name.encode()
            self.delayed.queue_keys = [(self.delayed.topic, queue_id) for queue_id in range(self.delay_levels)]
            self.terms = terms
        self.knows_terms = True
        return 0

    cdef int64_t due_ms(self, const Wish *wish) noexcept nogil:
        """`timer_requests.park_timer`: the slot, 0 if that has more to say."""
        cdef int64_t asked_ms = wish.number
        if wish.kind != TIMER_MOMENT:
            asked_ms = self.stored_at_ms + (1000 * wish.number if wish.kind == TIMER_SECONDS else wish.number)
        if not self.takes_timers or not 0 < asked_ms - self.stored_at_ms <= self.longest_timer_ms:
            return 0
        return (asked_ms - 1) // self.timer_precision_ms * self.timer_precision_ms

    cdef Py_ssize_t write_handle(
        self, uint8_t *handle, int64_t at_ms, const uint8_t *unique_key, Py_ssize_t key_bytes
    ) noexcept:
        """`RecallHandle.text`; 0 if it is too long."""
        cdef uint8_t plain[MOST_HANDLE]
        cdef uint8_t *out
        if 4 * (PyBytes_GET_SIZE(self.topic_name) + PyBytes_GET_SIZE(self.broker_name) + key_bytes + 40) > 3 * MOST_HANDLE:
            return 0
        out = write_text(plain, b"v1 ")
        out = write_text(out, self.topic_name)
        out = write_text(out, b" ")
        out = write_text(out, self.broker_name)
        out = write_text(out, b" ")
        out = write_number(out, at_ms)
        out = write_text(out, b" ")
        memcpy(out, unique_key, key_bytes)
        return write_base64(handle, plain, out + key_bytes - plain) - handle

    cdef int say_goal(self, Send *send, int64_t due_ms, const uint8_t *transaction, Py_ssize_t transaction_bytes) except -1:
        """Behind the properties, where MOST_ADDED bytes are kept for it."""
        cdef uint8_t *out = send.properties + send.properties_bytes
        if due_ms:
            out = write_number(write_text(out, b"TIMER_OUT_MS\x01"), due_ms)
            out = write_text(out, b"\x02")
        out = write_text(write_text(out, b"REAL_TOPIC\x01"), self.topic_name)
        out = write_number(write_text(out, b"\x02REAL_QID\x01"), send.queue_id)
        out = write_text(out, b"\x02")
        if transaction != NULL:
            out = write_text(out, b"__transactionId__\x01")
            memcpy(out, transaction, transaction_bytes)
            out = write_text(out + transaction_bytes, b"\x02")
        send.properties_bytes = out - send.properties
        return 0

    cdef bint find_field(self, Place place) except -1:
        """A topic may have been forgotten since the run before."""
        field = self.log.topic_fields.get(place.topic)
        if field is None:
            return False
        place.field = field.data
        place.magic = field.magic
        return True

    cdef int count_place(self, Place place) except -1:
        if place.records:
            self.sending.count(place.topic, place.records, place.record_bytes)
            place.records = place.record_bytes = 0
        return 0

    # ---- and is decided

    cdef bint take_end(self, connection, const uint8_t *header, Py_ssize_t header_bytes) except -1:
        """They come between half messages, and would end every run. Decided where they always are, with the log in its place."""
        if not self.immediate or self.end_transaction is None or not self.store_batches():
            return False
        if self.ends is not None:
            if self.commit_half(header, header_bytes):
                return True
            if self.ends.lacks and self.make_log_room(self.ends.lacks) and self.commit_half(header, header_bytes):
                return True
            self.ends.hand_over()  # decisions are recorded in the order in which they came
        self.log.end = self.at
        try:
            answer = self.end_transaction(connection, PyBytes_FromStringAndSize(<const char *>header, header_bytes), b"")
        finally:
            self.take_log_back()
        if answer is None:
            return False
        self.make_room(PyBytes_GET_SIZE(answer))
        write_text(self.answers + self.answered, answer)
        self.answered += PyBytes_GET_SIZE(answer)
        return True

    cdef bint commit_half(self, const uint8_t *header, Py_ssize_t header_bytes) except -1:
        cdef Tail tail
        tail.memory, tail.memory_start, tail.at, tail.prepared_to = self.memory, self.memory_start, self.at, self.prepared_to
        if not self.ends.take(header, header_bytes, &tail, self.stored_at):
            return False
        self.at = tail.at
        return True

    cdef int take_log_back(self) except -1:
        """Somebody else appended to it; perhaps to another file."""
        self.at = self.log.end
        self.prepared_to = self.log.prepared_to
        self.stored_at = max(self.stored_at, self.log.last_stored_at_ms)
        self.stored_at_ms = self.stored_at
        if self.log.segment_start != self.memory_start:
            PyBuffer_Release(&self.view)
            PyObject_GetBuffer(self.log.memory, &self.view, PyBUF_CONTIG)
            self.memory = <uint8_t *>self.view.buf
            self.memory_start = self.log.segment_start
        return 0

    # ---- many in one request

    cdef bint take_batch(self, Send *send, const uint8_t *unique_key, Py_ssize_t key_bytes) except -1:
        """`send._put_members`: each member as a record of its own, or none of them."""
        cdef Record record
        cdef Py_ssize_t members, total = 0, answered
        cdef tuple queue
        cdef int64_t first
        cdef bint is_large
        if send.body_bytes > self.most_body or send.sys_flag & (PREPARED_FLAG | COMMITTED_FLAG) or has_meaning(send):
            return False
        members = self.check_members(send, send.body, send.body_bytes, &total)
        if not members or total > MOST_BATCH_GROWTH * self.most_body or not self.make_log_room(total):
            return False
        is_large = self.notes_batches and LARGE_BATCH_BYTES <= total <= MOST_COPY_BYTES
        if self.unstored and not (is_large and self.at + total - self.before_unstored.at <= MOST_COPY_BYTES):
            if not self.store_batches():
                return False
        answered = self.answered
        queue = <tuple>self.queue_keys[send.queue_id]
        first = self.next_offset(queue)
        self.write_batch_receipt(send, first, members, send.body, send.body_bytes, unique_key, key_bytes)
        self.begin_record(&record, send)
        record.topic = <const uint8_t *>PyBytes_AS_STRING(self.topic_field)
        record.topic_bytes = PyBytes_GET_SIZE(self.topic_field)
        record.magic = <uint32_t>self.topic_magic
        record.queue_offset = first
        if is_large:
            self.put_together(send, &record, queue, total, answered)
        else:
            try:
                self.write_in_place(send, &record, queue, total)
            except StorageError:
                self.answered = answered  # the ordinary way tries it once more, and says why
                return False
        self.at += total
        self.next_offsets[queue] = first + members
        self.topic_records += members
        self.topic_record_bytes += total
        return True

    cdef int write_members(self, const Send *send, Record *record, tuple queue, uint8_t *out, Py_ssize_t room) except -1:
        """As records that follow each other, from `out` on. They fill `room`, which is what `check_members` says that they need."""
        cdef const uint8_t *at = send.body
        cdef const uint8_t *end = send.body + send.body_bytes
        cdef uint8_t *properties
        record.offset = self.at
        while at < end:
            at = read_member(at, end, send, record)
            if at == NULL or record_bytes(record) > room:
                raise AssertionError("a batch is not what it was when it was looked at")
            record.size = record_bytes(record)
            room -= record.size
            record.body_crc = crc31(record.body, record.body_bytes)
            properties = write_record(out, record)
            if not self.notes_batches:
                self.note(record, queue, properties)
            record.queue_offset += 1
            record.offset += record.size
            out += record.size
        if room:
            raise AssertionError("a batch is smaller than it was when it was looked at")
        return 0

    cdef int put_together(self, const Send *send, Record *record, tuple queue, Py_ssize_t total, Py_ssize_t answered) except -1:
        """Beside the log, which gets those of a read by one call: page by page, many cost less than one at a time. `answered`: before its receipt."""
        cdef bytearray whole = PyByteArray_FromStringAndSize(NULL, total)
        cdef int64_t first = record.queue_offset
        self.write_members(send, record, queue, <uint8_t *>PyByteArray_AS_STRING(whole), total)
        if not self.unstored:
            self.before_unstored = Mark(
                self.taken, answered, self.frames, self.appended, self.batches, self.at, self.topic_records, self.topic_record_bytes
            )
        self.unstored.append((queue, self.at, first, record.sys_flag, memoryview(whole), self.next_offsets.get(queue)))
        return 0

    cdef bint store_batches(self) except -1:
        """What was put together, before anything else is stored or answered. False: none of it could be, and none of it was ever taken."""
        if not self.unstored:
            return True
        unstored, self.unstored = self.unstored, []
        cdef bint is_stored = False
        try:
            self.log.write_together(self.before_unstored.at, [whole for _, _, _, _, whole, _ in unstored])
            is_stored = True
        except StorageError:
            pass  # the ordinary way tries each once more, and says why
        finally:
            if not is_stored:
                self.take_back(unstored)
        if is_stored:
            for queue, at, first, sys_flag, whole, _ in unstored:
                self.note_batch(queue, at, len(whole), first, sys_flag, whole)
        return is_stored

    cdef int take_back(self, list unstored) except -1:
        """Whoever hears of it leaves the loop at once: `taken`, and all that is counted beside it, stand before the first of them again."""
        cdef Mark before = self.before_unstored
        self.taken, self.answered, self.frames = before.taken, before.answered, before.frames
        self.appended, self.batches, self.at = before.appended, before.batches, before.at
        self.topic_records, self.topic_record_bytes = before.topic_records, before.topic_record_bytes
        for queue, _, _, _, _, next_offset in reversed(unstored):
            if next_offset is None:
                del self.next_offsets[queue]
            else:
                self.next_offsets[queue] = next_offset
        return 0

    cdef int note_batch(self, tuple queue, int64_t at, Py_ssize_t total, int64_t first, int64_t sys_flag, copy) except -1:
        """For the indexes: as it lies in the log where there is no copy, or where many of them wait already."""
        cdef Py_ssize_t position = at - self.memory_start
        if copy is None or len(self.log.recent) >= MOST_COPIES:
            copy = self.log.memory[position : position + total]
        self.note_record((queue, at, total, first, sys_flag, self.stored_at, copy))
        return 0

    cdef int write_in_place(self, const Send *send, Record *record, tuple queue, Py_ssize_t total) except -1:
        cdef int64_t first = record.queue_offset
        unfinished = self.log.unfinished
        unfinished.begin(self.at, self.at + total)
        try:
            self.write_members(send, record, queue, self.memory + (self.at - self.memory_start), total)
        finally:
            unfinished.finish()
        if self.notes_batches:
            self.note_batch(queue, self.at, total, first, record.sys_flag, None)
        return 0

    cdef Py_ssize_t check_members(self, const Send *send, const uint8_t *at, Py_ssize_t length, Py_ssize_t *total) except -1:
        """How many there are, and the bytes of their records; 0 if one is unusual."""
        cdef const uint8_t *end = at + length
        cdef Record record
        cdef Py_ssize_t members = 0, bodies = 0
        record.topic_bytes = PyBytes_GET_SIZE(self.topic_field)
        while at < end:
            at = read_member(at, end, send, &record)
            if at == NULL:
                return 0
            PREFETCH(record.properties + MEMBER_BYTES + (at - record.body))  # the next one's, if it is as long
            if (
                record.properties_bytes + record.more_properties_bytes > MOST_PROPERTIES
                or meaning_of(record.properties, record.properties_bytes) & (IS_INNER_BATCH | HAS_HANDLE)
            ):
                return 0
            members += 1
            bodies += record.body_bytes
            total[0] += record_bytes(&record)
        return members if bodies <= self.most_body else 0

    # ---- records

    cdef void begin_record(self, Record *record, const Send *send) noexcept:
        record.queue_id = send.queue_id
        record.flag = send.flag
        record.sys_flag = send.sys_flag
        record.born_at_ms = send.born_at_ms
        record.born_host = <const uint8_t *>PyBytes_AS_STRING(self.born_host)
        record.stored_at_ms = self.stored_at_ms
        record.store_host = <const uint8_t *>PyBytes_AS_STRING(self.store_host)
        record.reconsume_times = send.reconsume_times
        record.prepared_offset = 0
        record.more_properties_bytes = 0

    cdef bint place_record(self, Record *record, const Send *send, bytes field, int64_t magic) except -1:
        """At the end of the log. False if it is too long."""
        record.topic = <const uint8_t *>PyBytes_AS_STRING(field)
        record.topic_bytes = PyBytes_GET_SIZE(field)
        record.magic = <uint32_t>magic
        record.properties = send.properties
        record.properties_bytes = send.properties_bytes
        record.size = record_bytes(record)
        if record.properties_bytes > MOST_PROPERTIES or not self.make_log_room(record.size):
            return False
        record.offset = self.at
        record.body_crc = crc31(record.body, record.body_bytes)
        return True

    cdef bint make_log_room(self, Py_ssize_t size) except -1:
        """For so many bytes behind the last record; they may be the first of another file. False: the ordinary way will say why not.

        Nearly always there is, and every megabyte more of the file has to be asked for: a read that went the ordinary way from there on
        would cost as much as thousands that do not.
        """
        if self.at + size + BLANK_BYTES <= self.prepared_to:
            return True
        if not self.store_batches():
            return False
        self.log.end = self.at
        try:
            self.log.make_room(size)
        except OrbitError:
            return False
        finally:
            self.take_log_back()
        return self.at + size + BLANK_BYTES <= self.prepared_to

    cdef int64_t next_offset(self, tuple queue) except -1:
        known = self.next_offsets.get(queue)
        return 0 if known is None else <int64_t>known

    cdef int add_record(self, const Record *record, tuple queue) except -1:
        self.note(record, queue, self.write(record))
        self.next_offsets[queue] = record.queue_offset + 1
        return 0

    cdef uint8_t *write(self, const Record *record) noexcept:
        """At the end of the log. Where its properties are now."""
        self.at += record.size
        return write_record(self.memory + (record.offset - self.memory_start), record)

    cdef int note(self, const Record *record, tuple queue, const uint8_t *properties) except -1:
        """For the indexes."""
        text = PyBytes_FromStringAndSize(
            <const char *>properties, record.properties_bytes + record.more_properties_bytes
        )
        self.note_record(
            (queue, record.offset, record.size, record.queue_offset, record.sys_flag, self.stored_at, text)
        )
        return 0

    cdef bint choose_topic(self, Send *send) except -1:
        """Nearly always that of the message before. False if it is not one for plain messages."""
        cdef Text name = send.values[TOPIC]
        cdef bint is_known = is_text_of(name, self.topic_name)
        if is_known and self.topic is not None:
            return True
        if not self.store_batches():
            return False
        self.count_topic()
        if not is_known:
            self.topic_name = PyBytes_FromStringAndSize(<const char *>name.start, name.length)
            self.topic_text = PyUnicode_DecodeASCII(<const char *>name.start, name.length, NULL)
        self.topic = self.sending.plain_topic(self.topic_text)
        if self.topic is None:
            return False
        self.queue_keys = self.topic.queue_keys
        field = self.log.topic_fields.get(self.topic_text)
        self.topic_field = None if field is None else field.data  # nothing was stored in it yet
        self.topic_magic = 0 if field is None else field.magic
        return True

    cdef bint ask_door(self) except -1:
        """False if more than signatures has to be looked at."""
        if self.door.counts_requests:
            return False
        generation = self.door.generation
        if generation != self.generation:
            self.keys.clear()
            self.generation = generation
            self.key = None
        return True

    cdef bint choose_key(self, Text user) except -1:
        """Nearly always that of the message before. False if this user may not send to the topic, as far as is known."""
        if self.key is not None and self.key.topic is self.topic_text and is_text_of(user, self.key.user):
            return True
        if not is_plain(user.start, user.length):
            return False
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

    # ---- receipts

    cdef int write_receipt(
        self, const Send *send, const Record *record, const uint8_t *unique_key, Py_ssize_t key_bytes, const uint8_t *handle,
        Py_ssize_t handle_bytes,
    ) except -1:
        cdef uint8_t *frame
        cdef uint8_t *out
        frame = self.begin_receipt(key_bytes + handle_bytes)
        out = write_hex(write_text(frame + PREFIX_BYTES, self.before_id), self.at)
        self.end_receipt(frame, out, send, record.queue_offset, unique_key, key_bytes, handle, handle_bytes)
        return 0

    cdef int write_batch_receipt(
        self, const Send *send, int64_t first, Py_ssize_t members, const uint8_t *body, Py_ssize_t body_bytes,
        const uint8_t *unique_key, Py_ssize_t key_bytes,
    ) except -1:
        """The ids of all members, with commas between them."""
        cdef bytes host = self.host_hex
        cdef uint8_t *frame = self.begin_receipt(key_bytes + members * (PyBytes_GET_SIZE(host) + 17))
        cdef uint8_t *out = write_hex(write_text(frame + PREFIX_BYTES, self.before_id), self.at)
        cdef const uint8_t *end = body + body_bytes
        cdef Record record
        cdef int64_t at = self.at
        record.topic_bytes = PyBytes_GET_SIZE(self.topic_field)
        body = read_member(body, end, send, &record)
        while body < end:
            at += record_bytes(&record)
            out = write_hex(write_text(write_text(out, b","), host), at)
            body = read_member(body, end, send, &record)
        self.end_receipt(frame, out, send, first, unique_key, key_bytes, NULL, 0)
        return 0

    cdef uint8_t *begin_receipt(self, Py_ssize_t own_bytes) except NULL:
        """Room for what they all have, and so many bytes."""
        self.make_room(
            PyBytes_GET_SIZE(self.before_id) + PyBytes_GET_SIZE(self.behind_key) + PyBytes_GET_SIZE(self.behind_opaque)
            + MOST_NUMBERS + own_bytes
        )
        return self.answers + self.answered

    cdef int end_receipt(
        self, uint8_t *frame, uint8_t *out, const Send *send, int64_t queue_offset, const uint8_t *unique_key,
        Py_ssize_t key_bytes, const uint8_t *handle, Py_ssize_t handle_bytes,
    ) except -1:
        out = write_number(write_text(out, b'","queueId":"'), send.queue_id)
        out = write_number(write_text(out, b'","queueOffset":"'), queue_offset)
        if unique_key != NULL:
            out = write_text(out, b'","transactionId":"')
            memcpy(out, unique_key, key_bytes)
            out += key_bytes
        if handle_bytes:
            out = write_text(out, b'","recallHandle":"')
            memcpy(out, handle, handle_bytes)
            out += handle_bytes
        out = write_text(write_text(out, b'"'), self.behind_key)
        out = write_text(write_number(out, send.envelope.opaque), self.behind_opaque)
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


cdef const uint8_t *read_member(
    const uint8_t *at, const uint8_t *end, const Send *send, Record *record
) noexcept nogil:
    """`decode_batch` for one member, with the batch's properties behind its own: where it ends, NULL if it does not fit."""
    cdef const uint8_t *start = at
    cdef int64_t body_bytes, properties_bytes
    if end - at < MEMBER_BYTES + 2:
        return NULL
    body_bytes = <int32_t>load32(at + 16)
    record.flag = <int32_t>load32(at + 12)
    at += MEMBER_BYTES
    if body_bytes < 0 or body_bytes + 2 > end - at:
        return NULL
    record.body = at
    record.body_bytes = body_bytes
    at += body_bytes
    properties_bytes = at[0] << 8 | at[1]
    at += 2
    if properties_bytes > MOST_PROPERTIES or properties_bytes > end - at:
        return NULL
    record.properties = at
    record.properties_bytes = properties_bytes
    at += properties_bytes
    record.more_properties = send.properties
    record.more_properties_bytes = send.properties_bytes
    if properties_bytes and (at - 1)[0] != SEPARATOR:
        record.more_properties -= 1  # where a separator stands
        record.more_properties_bytes += 1
    return at if at - start == <int32_t>load32(start) else NULL


cdef int note_served(served, int64_t count) except -1:
    if count:
        if not served.fresh:
            served.unsettled.append(served)
        served.fresh += count
    return 0


cdef bint has_meaning(const Send *send) noexcept nogil:
    """Whether properties ask for more than to be stored as they are."""
    return meaning_of(send.properties, send.properties_bytes) != 0


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


cdef bint is_end_of_transaction(const uint8_t *frame, Py_ssize_t length) noexcept nogil:
    return length > 19 and frame[4] == 0 and memcmp(frame + 8, b'{"code":37,', 11) == 0


cdef bint begins_with_a_send(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """A glance, so that other requests lose no time here."""
    if length < 24:
        return False
    if data[4] == 0:
        return (
            memcmp(data + 8, b'{"code":310', 11) == 0
            or memcmp(data + 8, b'{"code":320', 11) == 0
            or is_end_of_transaction(data, length)
        )
    return data[4] == 1 and data[8] == 1 and (data[9] == 0x36 or data[9] == 0x40)
