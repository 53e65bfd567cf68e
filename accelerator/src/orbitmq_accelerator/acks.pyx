"""Acks of leased messages: the run of them that a read begins with, which is nearly always of one lease, and pops between them (`pops`).

What `orbitmq.broker.handlers.ack_express` does for one at a time. Consumers show a handle with every message; those of one lease differ in
their last part alone, so the lease is looked up once, and its acks are written as one entry. A run ends before the first request that is
unusual in any way, and before the acks of a lease of which one cannot be taken.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from orbitmq_accelerator.byte_order cimport load32, store32
from orbitmq_accelerator.command_header cimport Text, read_number
from orbitmq_accelerator.lanes cimport Lanes
from orbitmq_accelerator.leases cimport MOST_MESSAGES, Answers, LeaseBook, Lot, Party
from orbitmq_accelerator.pops cimport SwiftPops
from orbitmq_accelerator.request_header cimport Request, find_number, find_text, is_same_text, read_request
from orbitmq_accelerator.text cimport write_number, write_text

from orbitmq.broker.leases.checkpoints import LONGEST_LEASE_MS
from orbitmq.errors import OrbitError
from orbitmq.transport.express import MOST_SWIFT_HEADER_BYTES

cdef int64_t LONGEST_LEASE = LONGEST_LEASE_MS

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    ACK_MESSAGE = 200051
    HANDLE_PARTS = 8
    NUMBERS_FIRST = 4  # of them
    BROKER_PART = 5
    ORDERED = 999  # in place of a revive queue
    MOST_DIGITS = 20
    MAX_INT = 0x7FFFFFFF
    LARGE_BYTES = 256 << 10  # of answers

cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF
cdef Py_ssize_t MOST_HEADER = MOST_SWIFT_HEADER_BYTES
cdef tuple NOTHING = (0, b"")


cdef class SwiftAcks:
    """A swift handler: see orbitmq/transport/express.py. Its state stands in acks.pxd."""

    def __init__(self, ack_together, settling, topics, durability, served, bytes ok_header, LeaseBook book, SwiftPops pops):
        """`ok_header` has `%d` where the id of the request stands."""
        self.ack_together = ack_together
        self.settling = settling
        self.topics = topics
        self.durability = durability
        self.served = served
        self.before_opaque, self.behind_opaque = ok_header.split(b"%d")
        self.book = book
        self.lanes = Lanes(book.store.queues)
        self.pops = pops
        self.answers = Answers()

    def __call__(self, connection, bytes data):
        cdef Py_ssize_t taken = self.take_frames(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if not taken:
            return NOTHING
        return taken, PyBytes_FromStringAndSize(<const char *>self.answers.data, self.answers.length)

    cdef Py_ssize_t take_frames(self, const uint8_t *start, Py_ssize_t length) except -1:
        """How many bytes at the front were usual ones; `answers` are theirs."""
        cdef Py_ssize_t at = 0, taken = 0, frame_bytes, acks = 0, safely_answered = 0
        cdef Ack ack
        self.count = 0
        self.answers.length = 0
        if not self.durability.is_immediate:
            return 0
        while self.answers.length < LARGE_BYTES or self.count:
            frame_bytes = read_ack(start + at, length - at, &ack)
            if self.count and (
                not frame_bytes or self.count == MOST_MESSAGES or not is_of_same_lease(&self.first, &ack)
            ):
                if not self.settle():
                    break
                acks += self.count
                taken, safely_answered = at, self.answers.length
                self.count = 0
            if not frame_bytes:
                if self.pops is None:
                    break
                frame_bytes = self.pops.take_safely(start + at, length - at, self.answers)
                if not frame_bytes:
                    break
                at += frame_bytes
                taken, safely_answered = at, self.answers.length
                continue
            if not self.count:
                self.first = ack
            self.offsets[self.count] = ack.offset
            self.count += 1
            self.write_answer(ack.opaque)
            at += frame_bytes
        self.answers.length = safely_answered
        if acks:
            if not self.served.fresh:
                self.served.unsettled.append(self.served)
            self.served.fresh += acks
        return taken

    cdef bint settle(self) except -1:
        """False, and nothing done, if one of them is not to be taken just so."""
        cdef bint is_decided = False
        cdef bint is_settled = self.settle_here(&is_decided)
        cdef int number
        if is_decided:
            return is_settled
        offsets = []
        for number in range(self.count):
            offsets.append(self.offsets[number])
        return self.ack_together(
            text_of(self.first.group), text_of(self.first.topic), self.first.queue_id, text_of(self.first.handle), offsets
        )

    cdef bint settle_here(self, bint *is_decided) except -1:
        """What `AckExpress.together` says of them, if `is_decided`: leases of messages that do not lie side by side are left to it."""
        cdef Lot lot
        cdef Text broker
        cdef Party party
        cdef int64_t now_ms, low, high, known_first, index
        cdef uint64_t bits = 0, bit
        cdef Py_ssize_t known_count
        cdef int number
        if not self.book.open() or not read_handle(self.first.handle, &lot, &broker):
            return False
        party = self.book.party(self.first.group, self.first.topic)
        if party is None or not is_name(self.book.broker_text, broker):
            return False
        if lot.revive_queue >= self.book.revive_queues or lot.revive_queue == ORDERED or lot.invisible_ms > LONGEST_LEASE:
            return False
        lot.queue_id, lot.next, lot.record_bytes = self.first.queue_id, 0, 0
        config = (<dict>self.topics.all()).get(party.topic)
        if config is None or lot.queue_id >= config.read_queue_nums:
            return False
        key = self.book.key(party, &lot)
        lease = (<dict>self.book.open_leases.leases).get(key)
        if lease is None or key in self.settling.gathered or type(lease.offsets) is not range:
            return False
        known_first, known_count = lease.offsets.start, len(lease.offsets)
        now_ms = self.book.now_ms()
        if known_count > 64 or lot.pop_time_ms + lot.invisible_ms <= now_ms:
            return False
        if not self.lanes.find_range((party.topic, lot.queue_id), &low, &high):
            return False
        is_decided[0] = True
        for number in range(self.count):
            index = self.offsets[number] - known_first
            if not 0 <= index < known_count or not low <= self.offsets[number] <= high:
                return False
            bit = (<uint64_t>1) << index
            if bits & bit:
                return False  # said twice
            bits |= bit
        if bits & <uint64_t>lease.acked:
            return False
        try:
            self.book.ack(party, &lot, lease, self.offsets, self.count, bits, now_ms)
        except OrbitError:  # the ordinary way will meet it too, and can say it
            return False
        return True

    cdef int write_answer(self, int64_t opaque) except -1:
        cdef uint8_t *frame = self.answers.reserve(
            PREFIX_BYTES + PyBytes_GET_SIZE(self.before_opaque) + MOST_DIGITS + PyBytes_GET_SIZE(self.behind_opaque)
        )
        cdef uint8_t *out = write_number(write_text(frame + PREFIX_BYTES, self.before_opaque), opaque)
        out = write_text(out, self.behind_opaque)
        store32(frame, <uint32_t>(out - frame - 4))
        store32(frame + 4, <uint32_t>(out - frame - PREFIX_BYTES))
        self.answers.length += out - frame
        return 0


cdef inline str text_of(Text text):
    return PyUnicode_DecodeASCII(<const char *>text.start, text.length, NULL)


cdef inline bint is_name(bytes known, Text text) noexcept:
    return PyBytes_GET_SIZE(known) == text.length and memcmp(PyBytes_AS_STRING(known), text.start, text.length) == 0


cdef Py_ssize_t read_ack(const uint8_t *frame, Py_ssize_t length, Ack *ack) noexcept nogil:
    """The bytes of the frame; 0 if it is no usual ack, or not all there."""
    cdef Request request
    cdef Py_ssize_t frame_bytes, header_bytes
    cdef uint32_t word
    if not begins_with_an_ack(frame, length):
        return 0
    frame_bytes = <Py_ssize_t>load32(frame) + 4
    word = load32(frame + 4)
    header_bytes = word & 0xFFFFFF
    if frame_bytes > length or header_bytes + PREFIX_BYTES != frame_bytes or header_bytes > MOST_HEADER:
        return 0
    if not read_request(&request, frame + PREFIX_BYTES, header_bytes) or request.envelope.code != ACK_MESSAGE:
        return 0
    if request.envelope.flag or not (
        find_text(&request, b"consumerGroup", 13, &ack.group)
        and find_text(&request, b"topic", 5, &ack.topic)
        and find_text(&request, b"extraInfo", 9, &ack.handle)
        and find_number(&request, b"queueId", 7, MAX_INT, &ack.queue_id)
        and find_number(&request, b"offset", 6, MAX_LONG, &ack.offset)
    ):
        return 0
    ack.opaque = request.envelope.opaque
    ack.lease_bytes = find_lease(&request, ack.handle)
    return frame_bytes if ack.lease_bytes else 0


cdef Py_ssize_t find_lease(const Request *request, Text handle) noexcept nogil:
    """The bytes before its last part; 0 if it has not eight parts, or is not of the message that is named beside it."""
    cdef Py_ssize_t at, part_start = 0, last_start = 0
    cdef Text queue_id, offset, part
    cdef int parts = 1
    for at in range(handle.length):
        if handle.start[at] == c" ":
            parts += 1
            part_start = last_start
            last_start = at + 1
    if parts != HANDLE_PARTS:
        return 0
    if not find_text(request, b"queueId", 7, &queue_id) or not find_text(request, b"offset", 6, &offset):
        return 0
    part.start, part.length = handle.start + part_start, last_start - 1 - part_start
    if not is_same_text(part, queue_id):
        return 0
    part.start, part.length = handle.start + last_start, handle.length - last_start
    return last_start if is_same_text(part, offset) else 0


cdef bint read_handle(Text handle, Lot *lot, Text *broker) noexcept nogil:
    """Of the eight parts of a handle the first four, and the broker; false if a number is not written as we write them."""
    cdef int64_t numbers[NUMBERS_FIRST]
    cdef Py_ssize_t at, part_start = 0
    cdef int part = 0
    for at in range(handle.length):
        if handle.start[at] != c" ":
            continue
        if part < NUMBERS_FIRST:
            if not read_number(handle.start + part_start, at - part_start, 0, MAX_LONG, &numbers[part]):
                return False
        elif part == BROKER_PART:
            broker.start, broker.length = handle.start + part_start, at - part_start
            lot.start, lot.pop_time_ms, lot.invisible_ms, lot.revive_queue = numbers[0], numbers[1], numbers[2], numbers[3]
            return True
        part += 1
        part_start = at + 1
    return False


cdef bint is_of_same_lease(const Ack *one, const Ack *other) noexcept nogil:
    return (
        one.queue_id == other.queue_id
        and one.lease_bytes == other.lease_bytes
        and memcmp(one.handle.start, other.handle.start, one.lease_bytes) == 0
        and is_same_text(one.topic, other.topic)
        and is_same_text(one.group, other.group)
    )


cdef inline bint begins_with_an_ack(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    return length > 24 and data[4] == 0 and memcmp(data + PREFIX_BYTES, b'{"code":200051,', 15) == 0


cdef bint begins_with_a_lease(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """A glance, so that other requests lose no time here: at an ack, or a pop."""
    return (
        length > 24 and data[4] == 0 and memcmp(data + PREFIX_BYTES, b'{"code":20005', 13) == 0
        and (data[21] == c"0" or data[21] == c"1") and data[22] == c","
    )


cdef bint has_a_pop(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """Whether a frame that begins in this may be a pop, whatever stands before it."""
    cdef int64_t at = 0  # a frame may say that it is longer than any memory
    while length - at > 24:
        if data[at + 4] == 0 and memcmp(data + at + PREFIX_BYTES, b'{"code":200050,', 15) == 0:
            return True
        at += <int64_t>load32(data + at) + 4
    return False
