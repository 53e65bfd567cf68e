"""The timer wheel: messages put on it as they come, and the chain of those that are due, as `orbitmq.storage.timer_store` does both.

Units of the timer log are 52 bytes each; `orbitmq.storage.timer_log` has their layout.
"""

from array import array

from cpython.buffer cimport PyBUF_CONTIG, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from orbitmq_accelerator.byte_order cimport load32, load64, store32, store64
from orbitmq_accelerator.command_header cimport is_plain, read_number
from orbitmq_accelerator.copies cimport Window
from orbitmq_accelerator.record cimport KEEP_ORDER, Record
from orbitmq_accelerator.stored_record cimport Goal, read_waiting, recalls, seconds_between

cdef enum:
    ENTRY_BYTES = 20  # of a queue
    UNIT_BYTES = 52
    BLANK_BYTES = 16  # behind the last unit of a file
    PLAIN = 1
    RECALL = 4
    NOWHERE = -1
    MAX_INT = 0x7FFFFFFF
    MIN_INT = -0x7FFFFFFF

cdef int64_t LATEST_MS = 999_999_999_999_999_999


cdef class Chain:
    """A slot of the wheel, with what was put into it."""

    cdef int64_t tick, first, last, messages


cdef class Asked:
    """A topic that messages are for: Java's hash of it, and how many are to wait for how many seconds."""

    cdef bytes name
    cdef str topic
    cdef uint32_t topic_hash
    cdef dict seconds


cdef struct Terms:
    int64_t precision_ms
    int64_t now  # as a tick
    int64_t closed_to
    int64_t roll_window


cdef class TimerRun:
    """Messages that are put on the wheel together, in their order. Until all are, only the log behind its end was written to."""

    cdef Window window
    cdef Terms terms
    cdef object slot_of
    cdef dict chains  # by tick
    cdef dict asked  # by topic
    cdef Asked last_asked
    cdef uint8_t *memory
    cdef int64_t start, at, end  # of the file of the timer log

    def __init__(self, files, slot_of, int64_t precision_ms, int64_t now, int64_t closed_to, int64_t roll_window):
        """`files` are those of the commit log; `slot_of(tick)` is the slot as the wheel has it."""
        self.window = Window(files)
        self.slot_of = slot_of
        self.terms.precision_ms = precision_ms
        self.terms.now = now
        self.terms.closed_to = closed_to
        self.terms.roll_window = roll_window
        self.chains = {}
        self.asked = {}

    def put(self, bytes entries, bytes waited_in, int64_t readable_end, known, memory, int64_t start, int64_t at):
        """How many of these entries of the timer topic were usual, and the end of the timer log with their units.

        `memory` is its file, which begins at `start`; `known` are offsets of messages that are on the wheel already.
        """
        cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(entries)
        cdef Py_ssize_t count = 0, given = PyBytes_GET_SIZE(entries) // ENTRY_BYTES
        cdef Py_buffer view
        cdef int64_t offset, size
        cdef const uint8_t *data
        PyObject_GetBuffer(memory, &view, PyBUF_CONTIG)
        self.memory, self.start, self.at, self.end = <uint8_t *>view.buf, start, at, start + view.len
        try:
            while count < given and self.end - self.at >= UNIT_BYTES + BLANK_BYTES:
                offset, size = load64(entry), <int32_t>load32(entry + 8)
                if offset < 0 or size > readable_end - offset or (known and offset in known):
                    break
                data = self.window.find(offset, size)
                if data == NULL or not self.put_one(data, offset, size, waited_in):
                    break
                count += 1
                entry += ENTRY_BYTES
        finally:
            PyBuffer_Release(&view)
            self.window.close()
        return count, self.at

    def slots(self):
        """Those that were put into: tick, first and last unit, number of messages."""
        return [
            ((<Chain>chain).tick, (<Chain>chain).first, (<Chain>chain).last, (<Chain>chain).messages)
            for chain in self.chains.values()
        ]

    def waits(self):
        """Topic, seconds from birth to delivery, number of messages."""
        return [
            ((<Asked>asked).topic, seconds, messages)
            for asked in self.asked.values()
            for seconds, messages in (<Asked>asked).seconds.items()
        ]

    cdef bint put_one(self, const uint8_t *data, int64_t offset, int64_t size, bytes waited_in) except -1:
        """False, and nothing done, if it is unusual: late, further away than the wheel reaches, a recall."""
        cdef Record record
        cdef Goal goal
        cdef Chain chain
        cdef Asked asked
        cdef int64_t due_ms, tick, put_ms
        if not read_waiting(
            data, size, <const uint8_t *>PyBytes_AS_STRING(waited_in), PyBytes_GET_SIZE(waited_in), &record, &goal
        ):
            return False
        if recalls(&record) or not read_number(goal.due, goal.due_bytes, 0, LATEST_MS, &due_ms):
            return False
        tick = due_ms // self.terms.precision_ms
        if tick < min(self.terms.closed_to, self.terms.now):
            return False
        tick = max(tick, self.terms.closed_to)
        if not MIN_INT <= (tick - self.terms.now) * self.terms.precision_ms <= MAX_INT:
            return False
        if tick - self.terms.now >= self.terms.roll_window:
            return False
        asked = self.find_asked(&goal)
        if asked is None:
            return False
        chain = self.find_chain(tick)
        put_ms = self.terms.now * self.terms.precision_ms
        write_unit(
            self.memory + (self.at - self.start), chain.last, put_ms,
            <int32_t>((tick - self.terms.now) * self.terms.precision_ms), offset, size, asked.topic_hash,
        )
        chain.first = self.at if chain.first == NOWHERE else chain.first
        chain.last = self.at
        chain.messages += 1
        self.at += UNIT_BYTES
        seconds = seconds_between(record.born_at_ms, due_ms)
        asked.seconds[seconds] = asked.seconds.get(seconds, 0) + 1
        return True

    cdef Chain find_chain(self, int64_t tick):
        cdef Chain chain = self.chains.get(tick)
        if chain is None:
            chain = Chain()
            chain.tick, chain.first, chain.last, chain.messages = self.slot_of(tick)
            self.chains[tick] = chain
        return chain

    cdef Asked find_asked(self, const Goal *goal):
        """Nearly always that of the message before. None if its name has other letters than ASCII."""
        cdef Asked asked = self.last_asked
        cdef bytes name
        if (
            asked is not None
            and goal.topic_bytes == PyBytes_GET_SIZE(asked.name)
            and memcmp(goal.topic, PyBytes_AS_STRING(asked.name), goal.topic_bytes) == 0
        ):
            return asked
        if not is_plain(goal.topic, goal.topic_bytes):
            return None
        name = PyBytes_FromStringAndSize(<const char *>goal.topic, goal.topic_bytes)
        asked = self.asked.get(name)
        if asked is None:
            asked = Asked()
            asked.name = name
            asked.topic = PyUnicode_DecodeASCII(<const char *>goal.topic, goal.topic_bytes, NULL)
            asked.topic_hash = java_hash(goal.topic, goal.topic_bytes)
            asked.seconds = {}
            self.asked[name] = asked
        self.last_asked = asked
        return asked


def chain_of(files, int64_t log_start, int64_t log_end, int64_t last):
    """The units of a slot from the last one back: where they are, whether recalls are among them, and where the one is that
    has to be looked at (its file is gone, it is damaged), or -1."""
    cdef Window window = Window(files)
    cdef int64_t *places = NULL
    cdef int64_t *larger
    cdef Py_ssize_t count = 0, room = 0
    cdef int64_t at = last, previous
    cdef bint has_recalls = False
    cdef const uint8_t *unit
    positions = array("q")
    try:
        while at != NOWHERE:
            unit = window.find(at, UNIT_BYTES) if log_start <= at <= log_end - UNIT_BYTES else NULL
            if unit == NULL or load32(unit) != UNIT_BYTES:
                break
            previous = load64(unit + 4)
            if previous >= at:
                break
            if count == room:
                room = 2 * room + 256
                larger = <int64_t *>realloc(places, room * sizeof(int64_t))
                if larger == NULL:
                    raise MemoryError
                places = larger
            places[count] = at
            count += 1
            has_recalls = has_recalls or load32(unit + 12) & RECALL != 0
            at = previous
        positions.frombytes(PyBytes_FromStringAndSize(<const char *>places, count * sizeof(int64_t)))
    finally:
        free(places)
        window.close()
    return positions, has_recalls, at


cdef void write_unit(
    uint8_t *out, int64_t previous, int64_t put_ms, int32_t delay_ms, int64_t offset, int64_t size, uint32_t topic_hash
) noexcept nogil:
    """What makes it a unit goes in last."""
    store64(out + 4, previous)
    store32(out + 12, PLAIN)
    store64(out + 16, put_ms)
    store32(out + 24, <uint32_t>delay_ms)
    store64(out + 28, offset)
    store32(out + 36, <uint32_t>size)
    store32(out + 40, topic_hash)
    store64(out + 44, 0)
    KEEP_ORDER()
    store32(out, UNIT_BYTES)


cdef uint32_t java_hash(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    cdef uint32_t value = 0
    cdef Py_ssize_t at
    for at in range(length):
        value = 31 * value + text[at]
    return value
