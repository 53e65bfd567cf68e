"""Ends of transactions: commits that nobody awaits an answer to, as producers send them between their half messages.

What `orbitmq.broker.handlers.end_express` does for one. A roll-back, a decision that is answered, one about a message that is not at hand, a
forged one: all that is left to it.
"""

from libc.stdint cimport int64_t, uint8_t

from orbitmq_accelerator.command_header cimport Text, is_text
from orbitmq_accelerator.copies cimport Copies, Tail
from orbitmq_accelerator.record cimport Record
from orbitmq_accelerator.request_header cimport Request, find_number, find_text, read_request
from orbitmq_accelerator.stored_record cimport seconds_between

cdef enum:
    END_TRANSACTION = 37
    ONEWAY = 2
    COMMIT = 8
    MAX_INT = 0x7FFFFFFF

cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF


cdef class SwiftEnds:
    """Of one broker. What is decided in a run is handed over at its end; until then, nobody else looks."""

    def __init__(self, half_messages, half_message, Copies copies, bytes waited_in, served):
        self.half_messages = half_messages
        self.half_message = half_message  # the type of those
        self.undecided = half_messages.undecided
        self.copies = copies
        self.waited_in = waited_in
        self.served = served
        self.decided = []
        self.finished = {}

    cdef int begin(self, str topic, const Record *half) except -1:
        """A half message for that topic was stored."""
        self.undecided[half.queue_offset] = self.half_message(topic, half.offset, half.size, half.stored_at_ms)
        return 0

    cdef bint take(self, const uint8_t *header, Py_ssize_t length, Tail *tail, stored_at) except -1:
        """`tail`: of the log, which is moved on. False, and nothing done, if it is unusual, or lacks room."""
        cdef Request request
        cdef Text group, unused
        cdef int64_t queue_offset, offset, decision, size, born_at_ms = 0
        self.lacks = 0
        if not read_request(&request, header, length) or request.envelope.code != END_TRANSACTION:
            return False
        if request.envelope.flag != ONEWAY or not (
            find_text(&request, b"producerGroup", 13, &group)
            and find_text(&request, b"msgId", 5, &unused)
            and find_number(&request, b"tranStateTableOffset", 20, MAX_LONG, &queue_offset)
            and find_number(&request, b"commitLogOffset", 15, MAX_LONG, &offset)
            and find_number(&request, b"commitOrRollback", 16, MAX_INT, &decision)
            and decision == COMMIT
            and is_boolean(&request, b"fromTransactionCheck", 20)
        ):
            return False
        half = self.undecided.get(queue_offset)
        if half is None or half.commit_log_offset != offset:
            return False
        size = half.size
        if offset < tail.memory_start or size > tail.at - offset:
            return False  # in an older file
        if not self.is_open:
            self.copies.begin(stored_at)
            self.is_open = True
        self.copies.tail = tail[0]
        size = self.copies.commit_half(
            tail.memory + (offset - tail.memory_start), size, self.waited_in, group, queue_offset, &born_at_ms
        )
        if not size:
            self.lacks = self.copies.lacks
            return False
        tail.at = self.copies.tail.at
        del self.undecided[queue_offset]
        self.decided.append(queue_offset)
        self.count(self.copies.topic, seconds_between(born_at_ms, self.copies.stored_at_ms), size)
        return True

    cdef int count(self, str topic, int64_t seconds, int64_t size) except -1:
        if topic is not self.topic or seconds != self.seconds:
            self.note_alike()
            self.topic, self.seconds = topic, seconds
        self.alike += 1
        self.alike_bytes += size
        return 0

    cdef int note_alike(self) except -1:
        if self.alike:
            kind = (self.topic, self.seconds)
            messages, total = self.finished.get(kind, (0, 0))
            self.finished[kind] = (messages + self.alike, total + self.alike_bytes)
            self.alike = self.alike_bytes = 0
        return 0

    cdef int hand_over(self) except -1:
        """The run is over, or goes on after somebody else appended."""
        self.is_open = False
        if not self.decided:
            return 0
        self.note_alike()
        decided, self.decided = self.decided, []
        finished, self.finished = self.finished, {}
        if not self.served.fresh:
            self.served.unsettled.append(self.served)
        self.served.fresh += len(decided)
        self.half_messages.committed_together(
            decided, [(topic, seconds, *counts) for (topic, seconds), counts in finished.items()]
        )
        return 0


cdef bint is_boolean(const Request *request, const char *name, Py_ssize_t length) noexcept nogil:
    """Or not there at all."""
    cdef Text text
    cdef int number, seen = 0
    for number in range(request.fields):
        if is_text(request.names[number].start, request.names[number].length, name, length):
            text = request.values[number]
            seen += 1
    return not seen or (
        seen == 1 and (is_text(text.start, text.length, b"true", 4) or is_text(text.start, text.length, b"false", 5))
    )
