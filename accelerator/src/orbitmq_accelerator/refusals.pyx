"""Sends that are refused because too many wait: the loop of `orbitmq.broker.refusing.RefusedSends`, from frames to answers."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from orbitmq_accelerator.byte_order cimport load32
from orbitmq_accelerator.text cimport write_number

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    JSON = 0
    BINARY = 1
    BINARY_BYTES = 13  # of a binary header: code, language, version, opaque, flag
    MOST_DIGITS = 11  # of a signed number of 32 bits
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320


cdef class RefusedSends:
    """Its state stands in refusals.pxd."""

    def __cinit__(self):
        self.answers_room = 1 << 16
        self.answers = <uint8_t *>malloc(self.answers_room)
        if self.answers == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.answers)

    def say(self, list before, bytes after):
        """What the answers are made of from now on."""
        self.before = before
        self.after = after

    def __call__(self, bytes data):
        taken = self.take_frames(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return taken, PyBytes_FromStringAndSize(<const char *>self.answers, self.answered), self.frames

    cdef Py_ssize_t take_frames(self, const uint8_t *start, Py_ssize_t length) except -1:
        """How many bytes at the front were sends that want an answer; `frames` of them, whose answers are in `answers`."""
        cdef Py_ssize_t taken = 0, frame_bytes, header_bytes, digits
        cdef uint8_t written[MOST_DIGITS]
        cdef const uint8_t *frame
        cdef const uint8_t *header
        cdef const uint8_t *opaque
        cdef uint32_t word
        self.answered = self.frames = 0
        while length - taken >= PREFIX_BYTES:
            frame = start + taken
            frame_bytes = <Py_ssize_t>load32(frame) + 4
            word = load32(frame + 4)
            header_bytes = word & 0xFFFFFF
            if frame_bytes > length - taken or header_bytes + PREFIX_BYTES > frame_bytes:
                break
            header = frame + PREFIX_BYTES
            if word >> 24 == JSON:
                digits = find_opaque(header, header + header_bytes, &opaque)
            elif word >> 24 == BINARY and is_binary_send(header, header_bytes):
                digits = write_number(written, <int32_t>load32(header + 5)) - written
                opaque = written
            else:
                break
            if not digits:
                break
            self.write_answer(opaque, digits)
            self.frames += 1
            taken += frame_bytes
        return taken

    cdef int write_answer(self, const uint8_t *opaque, Py_ssize_t digits) except -1:
        cdef bytes before = <bytes>self.before[digits]
        cdef Py_ssize_t before_bytes = PyBytes_GET_SIZE(before), after_bytes = PyBytes_GET_SIZE(self.after)
        cdef Py_ssize_t end = self.answered + before_bytes + digits + after_bytes
        cdef uint8_t *out
        if end > self.answers_room:
            out = <uint8_t *>realloc(self.answers, 2 * end)
            if out == NULL:
                raise MemoryError
            self.answers = out
            self.answers_room = 2 * end
        out = self.answers + self.answered
        memcpy(out, PyBytes_AS_STRING(before), before_bytes)
        memcpy(out + before_bytes, opaque, digits)
        memcpy(out + before_bytes + digits, PyBytes_AS_STRING(self.after), after_bytes)
        self.answered = end
        return 0


cdef const uint8_t *find_last(
    const uint8_t *start, const uint8_t *end, const char *text, Py_ssize_t length
) noexcept nogil:
    cdef const uint8_t *at = end - length
    while at >= start:
        if at[0] == <uint8_t>text[0] and memcmp(at, text, length) == 0:
            return at
        at -= 1
    return NULL


cdef bint begins_with(const uint8_t *at, const uint8_t *end, const char *text, Py_ssize_t length) noexcept nogil:
    return end - at >= length and memcmp(at, text, length) == 0


cdef Py_ssize_t find_opaque(const uint8_t *header, const uint8_t *end, const uint8_t **opaque) noexcept nogil:
    """How many characters the number has of a send that wants an answer; 0 if it is something else, or unusual."""
    cdef const uint8_t *number = find_last(header, end, b'"opaque":', 9)
    cdef const uint8_t *flag
    cdef const uint8_t *comma
    cdef const uint8_t *digit
    if number == NULL:
        return 0
    flag = find_last(header, number, b'"flag":', 7)
    if flag == NULL or not begins_with(flag, end, b'"flag":0,', 9):
        return 0
    if not (
        begins_with(header, end, b'{"code":310,', 12) or begins_with(header, end, b'{"code":320,', 12)
        or begins_with(header, end, b'{"code":10,', 11)
    ):
        return 0
    number += 9
    comma = <const uint8_t *>memchr(number, c",", end - number)
    if comma == NULL or comma - number > MOST_DIGITS:
        return 0
    digit = number + (number[0] == c"-")
    if digit == comma:
        return 0
    while digit < comma:
        if not c"0" <= digit[0] <= c"9":
            return 0
        digit += 1
    opaque[0] = number
    return comma - number


cdef bint is_binary_send(const uint8_t *header, Py_ssize_t length) noexcept nogil:
    """One that wants an answer."""
    cdef uint32_t code
    if length < BINARY_BYTES or load32(header + 9) != 0:
        return False
    code = header[0] << 8 | header[1]
    return code == SEND_MESSAGE_V2 or code == SEND_BATCH_MESSAGE or code == SEND_MESSAGE
