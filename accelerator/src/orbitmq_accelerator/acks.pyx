"""Acks of leased messages: the run of them that a read begins with, which is nearly always of one lease.

What `orbitmq.broker.handlers.ack_express` does for one at a time. Consumers show a handle with every message; those of one lease differ in
their last part alone, so the lease is looked up once, and its acks are written as one entry. A run ends before the first request that is
unusual in any way, and before the acks of a lease of which one cannot be taken.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp

from orbitmq_accelerator.byte_order cimport load32, store32
from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.request_header cimport Request, find_number, find_text, is_same_text, read_request
from orbitmq_accelerator.text cimport write_number, write_text

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    ACK_MESSAGE = 200051
    HANDLE_PARTS = 8
    MOST_DIGITS = 20
    MAX_INT = 0x7FFFFFFF
    MOST_TOGETHER = 1024  # acks of one lease

cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF
cdef tuple NOTHING = (0, b"")


cdef struct Ack:
    int64_t opaque
    Text group
    Text topic
    Text handle
    Py_ssize_t lease_bytes  # of the handle, that all messages of a lease have
    int64_t queue_id
    int64_t offset


cdef class SwiftAcks:
    """A swift handler: see orbitmq/transport/express.py."""

    cdef object ack_together, durability, served
    cdef bytes before_opaque, behind_opaque
    cdef uint8_t *answers
    cdef Py_ssize_t answers_room, answered

    def __cinit__(self):
        self.answers_room = 1 << 14
        self.answers = <uint8_t *>malloc(self.answers_room)
        if self.answers == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.answers)

    def __init__(self, ack_together, durability, served, bytes ok_header):
        """`ok_header` has `%d` where the id of the request stands."""
        self.ack_together = ack_together
        self.durability = durability
        self.served = served
        self.before_opaque, self.behind_opaque = ok_header.split(b"%d")

    def __call__(self, connection, bytes data):
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data), at = 0, taken = 0, frame_bytes
        cdef Py_ssize_t acks = 0, safely_answered = 0
        cdef Ack ack, first
        cdef list offsets = []
        if not self.durability.is_immediate:
            return NOTHING
        self.answered = 0
        while True:
            frame_bytes = read_ack(start + at, length - at, &ack)
            if offsets and (
                not frame_bytes or not is_of_same_lease(&first, &ack) or len(offsets) == MOST_TOGETHER
            ):
                if not self.settle(&first, offsets):
                    break
                acks += len(offsets)
                taken, safely_answered = at, self.answered
                offsets = []
            if not frame_bytes:
                break
            if not offsets:
                first = ack
            offsets.append(ack.offset)
            self.write_answer(ack.opaque)
            at += frame_bytes
        if not taken:
            return NOTHING
        if not self.served.fresh:
            self.served.unsettled.append(self.served)
        self.served.fresh += acks
        return taken, PyBytes_FromStringAndSize(<const char *>self.answers, safely_answered)

    cdef bint settle(self, const Ack *first, list offsets) except -1:
        """False, and nothing done, if one of them is not to be taken just so."""
        return self.ack_together(
            text_of(first.group), text_of(first.topic), first.queue_id, text_of(first.handle), offsets
        )

    cdef int write_answer(self, int64_t opaque) except -1:
        cdef uint8_t *frame
        cdef uint8_t *out
        self.make_room(PREFIX_BYTES + PyBytes_GET_SIZE(self.before_opaque) + MOST_DIGITS + PyBytes_GET_SIZE(self.behind_opaque))
        frame = self.answers + self.answered
        out = write_number(write_text(frame + PREFIX_BYTES, self.before_opaque), opaque)
        out = write_text(out, self.behind_opaque)
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


cdef inline str text_of(Text text):
    return PyUnicode_DecodeASCII(<const char *>text.start, text.length, NULL)


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
    if frame_bytes > length or header_bytes + PREFIX_BYTES != frame_bytes:
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


cdef bint is_of_same_lease(const Ack *one, const Ack *other) noexcept nogil:
    return (
        one.queue_id == other.queue_id
        and one.lease_bytes == other.lease_bytes
        and memcmp(one.handle.start, other.handle.start, one.lease_bytes) == 0
        and is_same_text(one.topic, other.topic)
        and is_same_text(one.group, other.group)
    )


cdef bint begins_with_an_ack(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """A glance, so that other requests lose no time here."""
    return length > 24 and data[4] == 0 and memcmp(data + PREFIX_BYTES, b'{"code":200051,', 15) == 0
