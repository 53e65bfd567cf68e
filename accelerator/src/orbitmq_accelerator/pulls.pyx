"""The usual pulls of one read: frames in, the records of their queues out, from where they lie in the log.

What `orbitmq.broker.handlers.pull_express` does for one request at a time. What a pull's checks came to (`Pulling.check`) is kept for others
that ask alike, as long as the settings, the group, the topic and what the group's heartbeats say are the very objects they were; within a
turn nobody else has a chance to change them. What is answered in it is counted at its end. Entries of the queue (`lanes`) are walked as `orbitmq.storage.reading.QueueReader` does, by tags or not. Records are not copied: an answer is its header and
slices of the mapped log, for one call of the system. A pull that finds nothing new and may wait is held.

As everywhere, what is unusual ends the run and goes the ordinary way: an operator's reset, a SQL filter, a queue that is compacted, a
record that is gone, an answer too large to be written at once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from orbitmq_accelerator.byte_order cimport load32, load64, store32
from orbitmq_accelerator.lanes cimport Extent, Lane, Lanes
from orbitmq_accelerator.pull_header cimport (
    BULK_BYTES, COMMIT_OFFSET, EXPRESSION_TYPE, GROUP, MAX_BYTES, MAX_COUNT, QUEUE_ID, QUEUE_OFFSET, SUBSCRIPTION, SUB_VERSION,
    SUSPEND_MS, SYS_FLAG, TEXTS, TOPIC, Pull, read_pull,
)
from orbitmq_accelerator.text cimport write_number, write_text

import logging

from orbitmq.broker.pull_answers import FOUND_TEXTS
from orbitmq.errors import RequestFailed
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.pull import PullMessage
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS
from orbitmq.storage.reading import LEAST_READ_BYTES, MAX_READ_BYTES
from orbitmq.transport.express import MOST_SWIFT_HEADER_BYTES

logger = logging.getLogger(__name__)

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    ENTRY_BYTES = 20  # of a queue
    NOWHERE_SIZE = 0x7FFFFFFF  # of an entry without a record
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    ASKS_COMMIT = 1  # bits of a pull's flag
    MAY_WAIT = 2
    SAYS_SUBSCRIPTION = 4
    IS_LITE = 16
    MOST_KEY = 2048
    MOST_TERMS = 10_000  # askers can name groups without end
    MOST_LANES = 100_000
    HEADERS_ROOM = 64 << 10
    LARGE_BYTES = 256 << 10  # of records: that is written in pieces, by the transport

cdef int64_t LAST_EXTENSION = LAST_EXTENSION_ADDRESS
cdef int64_t LEAST_BYTES = LEAST_READ_BYTES
cdef int64_t MOST_BYTES = MAX_READ_BYTES
cdef Py_ssize_t MOST_HEADER = MOST_SWIFT_HEADER_BYTES
cdef Py_ssize_t HEADER_ROOM = sum(map(len, FOUND_TEXTS)) + 20 * len(FOUND_TEXTS)
cdef tuple NOTHING = (0, b"")


cdef class Terms:
    """What the checks of pulls that ask alike came to. The fields stand in pulls.pxd."""


cdef class SwiftPulls:
    """A swift handler: see orbitmq/transport/express.py. Its state stands in pulls.pxd."""

    def __cinit__(self):
        self.headers = <uint8_t *>malloc(HEADERS_ROOM)
        if self.headers == NULL:
            raise MemoryError

    def __dealloc__(self):
        self.close_views()
        free(self.headers)

    def __init__(self, pulling, store, topics, groups, offsets, configuration, compacted, served, served_lite, others):
        """`others`: a swift handler for reads that begin with something else."""
        self.pulling = pulling
        self.store = store
        self.log = store.log
        self.lanes = Lanes(store.queues)
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.configuration = configuration
        self.resets = offsets.resets
        self.pulled_to = offsets.pulled_to
        self.compacted = None if compacted is None else compacted.queues
        self.served = served
        self.served_lite = served_lite
        self.others = others
        self.terms = {}
        self.uncounted = []
        self.has_pool = store.config.write_pool_buffers > 0
        self.found = FOUND_TEXTS
        reader = store.reader
        self.recent_bytes = reader.recent_bytes
        self.most_filtered = store.config.max_filtered_entries
        self.usual = portions(reader.usual)
        self.bulk = portions(reader.bulk)

    def __call__(self, connection, bytes data):
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t taken, length = PyBytes_GET_SIZE(data)
        if not begins_with_a_pull(start, length):
            return self.others(connection, data)
        self.begin_turn()
        try:
            taken = self.take_frames(connection, start, length)
            return (taken, self.joined(0)) if taken else NOTHING
        finally:
            self.release()
            self.settle_turn()

    cdef Py_ssize_t take_frames(self, connection, const uint8_t *start, Py_ssize_t length) except -1:
        """How many bytes at the front were usual pulls. `pieces` are their answers, until `release`."""
        cdef Py_ssize_t taken = 0, frame_bytes, header_bytes
        cdef uint32_t word
        while length - taken >= PREFIX_BYTES and self.size < LARGE_BYTES:
            frame_bytes = <Py_ssize_t>load32(start + taken) + 4
            word = load32(start + taken + 4)
            header_bytes = word & 0xFFFFFF
            if frame_bytes > length - taken or header_bytes + PREFIX_BYTES > frame_bytes or header_bytes > MOST_HEADER:
                break
            if not self.take_safely(connection, start + taken + PREFIX_BYTES, header_bytes, word >> 24):
                break
            taken += frame_bytes
        return taken

    cdef bint take_safely(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1:
        """An error is unusual as well: what was answered before it stays so, and the ordinary way tells the peer."""
        cdef Py_ssize_t pieces = self.piece_count, size = self.size, headers_used = self.headers_used
        try:
            return self.take(connection, header, header_bytes, codec)
        except Exception:
            logger.warning("a pull of %s was not understood by the compiled code", connection.peer, exc_info=True)
            self.piece_count = pieces
            self.size = size
            self.headers_used = headers_used
            return False

    cdef bytes joined(self, Py_ssize_t start):
        """The answers as one, from byte `start` on."""
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, self.size - start)
        cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(whole)
        cdef Py_ssize_t number, length
        for number in range(self.piece_count):
            length = self.pieces[number].iov_len
            if start < length:
                memcpy(out, <const uint8_t *>self.pieces[number].iov_base + start, length - start)
                out += length - start
                start = 0
            else:
                start -= length
        return whole

    cdef void release(self) noexcept:
        self.piece_count = self.size = self.headers_used = 0

    cdef void begin_turn(self) noexcept:
        """Others had theirs: what was known may have changed."""
        self.turn += 1

    cdef int settle_turn(self) except -1:
        cdef Terms terms
        self.close_views()
        if not self.uncounted:
            return 0
        uncounted, self.uncounted = self.uncounted, []
        for terms in uncounted:
            pulls, messages, message_bytes = terms.pulls, terms.messages, terms.message_bytes
            terms.pulls = terms.messages = terms.message_bytes = 0
            self.pulling.count(terms.group_name, terms.topic_name, pulls, messages, message_bytes)
        note_served(self.served, self.answered)
        note_served(self.served_lite, self.answered_lite)
        self.answered = self.answered_lite = 0
        return 0

    cdef void close_views(self) noexcept:
        while self.view_count:
            self.view_count -= 1
            PyBuffer_Release(&self.views[self.view_count])

    cdef bint take(self, connection, const uint8_t *header, Py_ssize_t header_bytes, uint32_t codec) except -1:
        """One request: false, and nothing done, if it is unusual."""
        cdef Pull pull
        cdef Terms terms
        cdef Lane lane
        cdef Extent extent
        cdef int64_t limit, next_offset = 0, count = 0
        cdef Py_ssize_t pieces = self.piece_count, size = self.size
        if (
            self.headers_used + HEADER_ROOM > HEADERS_ROOM or pieces == MOST_PIECES
            or not read_pull(&pull, header, header_bytes, codec)
            or not (pull.envelope.code == PULL_MESSAGE or pull.envelope.code == LITE_PULL_MESSAGE)
            or self.resets
        ):
            return False
        terms = self.find_terms(&pull)
        if terms is None or not 0 <= pull.numbers[QUEUE_ID] < terms.read_queues:
            return False
        lane = self.find_lane(terms, pull.numbers[QUEUE_ID])
        if self.compacted is not None and lane.queue_key in self.compacted:
            return False
        limit = max(1, pull.numbers[MAX_COUNT])
        if terms.tags:
            limit = max(self.most_filtered, limit)
        if not self.lanes.read(lane, pull.numbers[QUEUE_OFFSET], limit, &extent):
            return False
        if pull.numbers[QUEUE_OFFSET] == extent.high:
            return self.hold(connection, terms, &pull)
        if not self.add_piece(self.headers + self.headers_used, 0) or not self.collect(
            terms, &pull, extent.entries, extent.given, &next_offset, &count
        ):
            self.piece_count = pieces
            self.size = size
            return False
        self.write_header(pieces, terms, &pull, next_offset, extent.low, extent.high, self.size - size)
        self.commit_if_asked(terms, &pull)
        self.pulled_to[lane.pulled_key] = next_offset
        self.note_answered(terms, &pull, count, self.size - size - self.pieces[pieces].iov_len)
        return True

    cdef int note_answered(self, Terms terms, const Pull *pull, int64_t messages, int64_t message_bytes) except -1:
        if not terms.pulls:
            self.uncounted.append(terms)
        terms.pulls += 1
        terms.messages += messages
        terms.message_bytes += message_bytes
        if pull.envelope.code == PULL_MESSAGE:
            self.answered += 1
        else:
            self.answered_lite += 1
        return 0

    # ---- may it be pulled, and what

    cdef Terms find_terms(self, const Pull *pull):
        """None if it is refused, or wants something unusual."""
        cdef Terms terms = self.last_terms
        cdef uint8_t key[MOST_KEY]
        cdef Py_ssize_t length = write_key(key, pull)
        if not length:
            return None
        if terms is None or PyBytes_GET_SIZE(terms.key) != length or memcmp(PyBytes_AS_STRING(terms.key), key, length) != 0:
            terms = self.terms.get(PyBytes_FromStringAndSize(<const char *>key, length))
        if terms is None or not self.still_hold(terms, pull):
            try:
                terms = self.make_terms(pull)
            except RequestFailed:  # said by the ordinary way
                return None
            if terms is None:
                return None
            terms.key = PyBytes_FromStringAndSize(<const char *>key, length)
            self.keep_terms(terms)
        self.last_terms = terms
        return terms if terms.is_usual else None

    cdef int keep_terms(self, Terms terms) except -1:
        if len(self.terms) >= MOST_TERMS:
            self.terms.clear()
            self.lane_count = 0
        self.terms[terms.key] = terms
        return 0

    cdef Lane find_lane(self, Terms terms, int64_t queue_id):
        cdef Lane lane = terms.lanes.get(queue_id)
        if lane is None:
            if self.lane_count >= MOST_LANES:
                self.terms.clear()
                self.last_terms = None
                terms.lanes.clear()
                self.lane_count = 0
            self.lane_count += 1
            lane = terms.lanes[queue_id] = Lane(terms.topic_name, terms.group_name, queue_id)
        return lane

    cdef bint still_hold(self, Terms terms, const Pull *pull) except -1:
        if terms.held_in == self.turn and terms.held_version == pull.numbers[SUB_VERSION]:
            return True
        if not self.hold_now(terms, pull):
            return False
        terms.held_in = self.turn
        terms.held_version = pull.numbers[SUB_VERSION]
        return True

    cdef bint hold_now(self, Terms terms, const Pull *pull) except -1:
        if (
            self.configuration.settings is not terms.settings
            or (<dict>self.topics.all()).get(terms.topic_name) is not terms.topic
            or (<dict>self.groups.all()).get(terms.group_name) is not terms.group
            or not terms.group.consume_enable
        ):
            return False
        if terms.known is None:
            return terms.group.consume_broadcast_enable  # else it depends on what its members say: asked anew
        try:
            known = self.pulling.known_subscription(
                terms.group_name, terms.topic_name, pull.numbers[SUB_VERSION], terms.group
            )
        except RequestFailed:
            return False
        return known == terms.known

    cdef Terms make_terms(self, const Pull *pull):
        cdef Terms terms = Terms()
        terms.lanes = {}
        terms.group_name = text_of(pull, GROUP)
        terms.topic_name = text_of(pull, TOPIC)
        terms.subscription = text_of(pull, SUBSCRIPTION)
        terms.expression_type = text_of(pull, EXPRESSION_TYPE)
        terms.settings = self.configuration.settings
        group, topic, wishes = self.pulling.check(header_of(terms, pull))
        # A group or topic that is in no table is made for each question, and could not be known again.
        if (<dict>self.topics.all()).get(terms.topic_name) is not topic or (<dict>self.groups.all()).get(terms.group_name) is not group:
            return None
        terms.group = group
        terms.topic = topic
        if not pull.numbers[SYS_FLAG] & SAYS_SUBSCRIPTION:
            terms.known = self.pulling.known_subscription(
                terms.group_name, terms.topic_name, pull.numbers[SUB_VERSION], group
            )
        terms.is_sent_away_when_behind = terms.settings.slave_read_enable
        codes = wishes.tag_codes or ()
        terms.is_usual = (
            wishes.accept is None and len(codes) <= MOST_TAGS and not (terms.is_sent_away_when_behind and group.broker_id)
            and is_int32(topic.read_queue_nums) and is_int32(topic.topic_sys_flag) and is_int32(group.group_sys_flag)
        )
        if not terms.is_usual:  # that is all to remember: a filter may be large, and those who ask can think of many
            terms.subscription = terms.expression_type = None
            return terms
        terms.wishes = wishes
        terms.read_queues = topic.read_queue_nums
        terms.topic_flag = topic.topic_sys_flag
        terms.group_flag = group.group_sys_flag
        for code in codes:
            terms.tag_codes[terms.tags] = code
            terms.tags += 1
        return terms

    cdef bint hold(self, connection, Terms terms, const Pull *pull) except -1:
        """There is nothing yet: whether it waits."""
        if not pull.numbers[SYS_FLAG] & MAY_WAIT:
            return False
        # Whoever answers it later needs no more of the request than this.
        request = Command(pull.envelope.code, opaque=pull.envelope.opaque)
        request.arrived = connection.last_activity
        self.commit_if_asked(terms, pull)  # first: one that waits is answered, whatever fails after that
        return self.pulling.wait(header_of(terms, pull), terms.wishes, request, connection)

    cdef int commit_if_asked(self, Terms terms, const Pull *pull) except -1:
        if pull.numbers[SYS_FLAG] & ASKS_COMMIT:
            self.offsets.commit(
                terms.group_name, terms.topic_name, pull.numbers[QUEUE_ID], pull.numbers[COMMIT_OFFSET]
            )
        return 0

    # ---- records

    cdef bint collect(
        self, Terms terms, const Pull *pull, const uint8_t *entry, Py_ssize_t given, int64_t *next_offset, int64_t *count
    ) except -1:
        """`QueueReader._collect`: false if nothing is found, or something is unusual."""
        cdef int64_t most_count = pull.numbers[MAX_COUNT], bulk_bytes = pull.numbers[BULK_BYTES]
        cdef int64_t wanted_bytes = bulk_bytes if bulk_bytes > 0 else pull.numbers[MAX_BYTES]
        cdef int64_t most_bytes = max(LEAST_BYTES, min(wanted_bytes, MOST_BYTES)) if wanted_bytes > 0 else MOST_BYTES
        cdef const Portions *portion = &self.bulk if bulk_bytes > 0 else &self.usual
        cdef int64_t log_end = self.log.end, readable_end = self.log.readable_end if self.has_pool else log_end
        cdef int64_t offset = 0, size, code, total = 0
        cdef Py_ssize_t number
        cdef const uint8_t *record
        for number in range(given):
            offset, size, code = load64(entry), <int32_t>load32(entry + 8), load64(entry + 12)
            entry += ENTRY_BYTES
            if count[0]:
                if count[0] + 1 > most_count or total + size > most_bytes:
                    break
                if log_end - offset <= self.recent_bytes:
                    if total + size > portion.bytes_in_memory or count[0] >= portion.count_in_memory:
                        break
                elif total + size > portion.bytes_on_disk or count[0] >= portion.count_on_disk:
                    break
            next_offset[0] = pull.numbers[QUEUE_OFFSET] + number + 1
            if size == NOWHERE_SIZE:
                continue
            if terms.tags:
                if code <= LAST_EXTENSION:
                    return False
                if not has_tag(terms, <int32_t>code):
                    continue
            # Subtracted, not added: an entry that is damaged may hold any number.
            if size <= 0 or offset < 0 or offset > readable_end or size > readable_end - offset or total + size > LARGE_BYTES:
                return False
            record = self.record_at(offset, size)
            if record == NULL or not self.add_piece(record, size):
                return False
            total += size
            count[0] += 1
        if terms.is_sent_away_when_behind and log_end - offset > self.recent_bytes:
            return False
        return count[0] > 0

    cdef const uint8_t *record_at(self, int64_t offset, int64_t size) except? NULL:
        """Where it lies in memory; NULL if not all of it is there."""
        cdef int number = self.view_count - 1
        while number >= 0 and not self.starts[number] <= offset < self.ends[number]:
            number -= 1
        if number < 0:
            if not self.open_view(offset):
                return NULL
            number = self.view_count - 1
        if size > self.ends[number] - offset:
            return NULL
        return <const uint8_t *>self.views[number].buf + (offset - self.starts[number])

    cdef bint open_view(self, int64_t offset) except -1:
        cdef int number = self.view_count
        if number == MOST_VIEWS:
            return False
        segment = self.log.files.segment_of(offset)
        if segment is None:
            return False
        PyObject_GetBuffer(segment.memory, &self.views[number], PyBUF_SIMPLE)
        self.view_count += 1  # to be released, whatever comes
        self.starts[number] = segment.start
        self.ends[number] = self.starts[number] + self.views[number].len
        return True

    cdef bint add_piece(self, const uint8_t *data, Py_ssize_t length) noexcept:
        """Records that lie one behind the other are one piece."""
        cdef iovec *last = &self.pieces[self.piece_count - 1]
        self.size += length
        if length and <const uint8_t *>last.iov_base + last.iov_len == data:
            last.iov_len += length
            return True
        if self.piece_count == MOST_PIECES:
            return False
        self.pieces[self.piece_count].iov_base = <void *>data
        self.pieces[self.piece_count].iov_len = length
        self.piece_count += 1
        return True

    # ---- answers

    cdef int write_header(
        self, Py_ssize_t piece, Terms terms, const Pull *pull, int64_t next_offset, int64_t low, int64_t high, int64_t body_bytes
    ) except -1:
        cdef uint8_t *frame = self.headers + self.headers_used
        cdef uint8_t *out = write_text(frame + PREFIX_BYTES, <bytes>self.found[0])
        out = write_text(write_number(out, next_offset), <bytes>self.found[1])
        out = write_text(write_number(out, low), <bytes>self.found[2])
        out = write_text(write_number(out, high), <bytes>self.found[3])
        out = write_text(write_number(out, terms.topic_flag), <bytes>self.found[4])
        out = write_text(write_number(out, terms.group_flag), <bytes>self.found[5])
        out = write_text(write_number(out, pull.envelope.opaque), <bytes>self.found[6])
        store32(frame, <uint32_t>(out - frame - 4 + body_bytes))
        store32(frame + 4, <uint32_t>(out - frame - PREFIX_BYTES))
        self.pieces[piece].iov_len = out - frame
        self.size += out - frame
        self.headers_used += out - frame
        return 0


cdef Portions portions(limits):
    cdef Portions found
    found.bytes_in_memory, found.count_in_memory, found.bytes_on_disk, found.count_on_disk = limits
    return found


cdef bint is_int32(number) except -1:
    """As Java's numbers of this kind are. A table that somebody wrote may hold any."""
    return -(1 << 31) <= number < 1 << 31


cdef bint has_tag(Terms terms, int32_t code) noexcept:
    cdef int number
    for number in range(terms.tags):
        if terms.tag_codes[number] == code:
            return True
    return False


cdef str text_of(const Pull *pull, int field):
    """None where it is not said."""
    if not pull.seen & (1u << field):
        return None
    return PyUnicode_DecodeASCII(<const char *>pull.texts[field].start, pull.texts[field].length, NULL)


cdef Py_ssize_t write_key(uint8_t *key, const Pull *pull) noexcept:
    """What pulls that ask alike have in common, up to MOST_KEY bytes; how many those are, 0 if it is longer."""
    cdef uint8_t *out = key + 2
    cdef int field
    key[0] = pull.numbers[SYS_FLAG] & (SAYS_SUBSCRIPTION | IS_LITE)
    key[1] = 0
    for field in range(TEXTS):
        if pull.seen & (1u << field):
            if pull.texts[field].length >= key + MOST_KEY - out:
                return 0
            memcpy(out, pull.texts[field].start, pull.texts[field].length)
            out += pull.texts[field].length
            key[1] |= 1 << field
        out[0] = c"\n"  # in none of the texts
        out += 1
        if out + TEXTS >= key + MOST_KEY:
            return 0
    return out - key


cdef object header_of(Terms terms, const Pull *pull):
    return PullMessage(
        consumer_group=terms.group_name,
        topic=terms.topic_name,
        queue_id=pull.numbers[QUEUE_ID],
        queue_offset=pull.numbers[QUEUE_OFFSET],
        max_msg_nums=pull.numbers[MAX_COUNT],
        sys_flag=pull.numbers[SYS_FLAG],
        commit_offset=pull.numbers[COMMIT_OFFSET],
        suspend_timeout_millis=pull.numbers[SUSPEND_MS],
        subscription=terms.subscription,
        sub_version=pull.numbers[SUB_VERSION],
        expression_type=terms.expression_type,
        max_msg_bytes=pull.numbers[MAX_BYTES] if pull.seen & (1u << MAX_BYTES) else None,
        bulk_bytes=pull.numbers[BULK_BYTES] if pull.seen & (1u << BULK_BYTES) else None,
    )


cdef int note_served(served, int64_t count) except -1:
    if count:
        if not served.fresh:
            served.unsettled.append(served)
        served.fresh += count
    return 0


cdef bint begins_with_a_pull(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """A glance, so that other requests lose no time here."""
    if length < 24:
        return False
    if data[4] == 0:
        return memcmp(data + 8, b'{"code":11,', 11) == 0 or memcmp(data + 8, b'{"code":361', 11) == 0
    return data[4] == 1 and ((data[8] == 0 and data[9] == 11) or (data[8] == 1 and data[9] == 0x69))
