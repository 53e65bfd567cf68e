"""A usual pop: messages of a topic's queues, leased to a group that has been there before, and given from where they lie in the log.

What `orbitmq.broker.leases.serving` and `popping` do for it. What its checks came to is kept for others that ask alike, as long as the settings,
the group and the topic are the very objects they were. Nothing is changed before all of its messages are found; whatever is unusual until then
(no message, a filter, an ordered lease, messages to be tried again, a reset, a position where nothing is) is left to the ordinary way.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from orbitmq_accelerator.byte_order cimport load32, load64, store32
from orbitmq_accelerator.command_header cimport Text, is_text, read_number
from orbitmq_accelerator.copies cimport Window
from orbitmq_accelerator.lanes cimport Extent, Lane, Lanes
from orbitmq_accelerator.leases cimport MOST_MESSAGES, Answers, LeaseBook, Lot
from orbitmq_accelerator.request_header cimport Request, find_number, find_text, read_request
from orbitmq_accelerator.text cimport write_number, write_text

import logging

from orbitmq.broker import statistics
from orbitmq.broker.leases.checkpoints import LONGEST_LEASE_MS
from orbitmq.broker.leases.lease_log import BEFORE_ACKS_MS
from orbitmq.broker.leases.serving import FOUND_TEXTS, LATE_MS
from orbitmq.errors import OrbitError, RequestFailed
from orbitmq.protocol.headers.leases import PopMessage
from orbitmq.protocol.lease_texts import kind_of, retry_topic_v1, retry_topic_v2
from orbitmq.storage.reading import MAX_READ_BYTES
from orbitmq.transport.express import MOST_SWIFT_HEADER_BYTES

logger = logging.getLogger(__name__)

cdef enum:
    PREFIX_BYTES = 8  # of a frame
    ENTRY_BYTES = 20  # of a queue
    POP_MESSAGE = 200050
    ANY_QUEUE = -1
    MAX_INT = 0x7FFFFFFF
    MOST_KEY = 2048
    MOST_TERMS = 10_000  # askers can name groups without end
    MOST_LANES = 100_000
    MOST_DIGITS = 20
    LARGE_BYTES = 256 << 10  # of records: that is not copied, but written in pieces
    MOST_RECENT = 64  # records that are not indexed yet

cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF
cdef Py_ssize_t MOST_HEADER = MOST_SWIFT_HEADER_BYTES
cdef int64_t LONGEST_LEASE = LONGEST_LEASE_MS
cdef int64_t SHORTEST_LEASE = BEFORE_ACKS_MS + 1  # shorter ones are due when they are written
cdef int64_t TOO_LATE = LATE_MS
# For each message at most a queue, where it starts, and its own offset, in two texts.
cdef Py_ssize_t HEADER_ROOM = (
    PREFIX_BYTES + sum(map(len, FOUND_TEXTS)) + MOST_DIGITS * len(FOUND_TEXTS) + MOST_MESSAGES * (4 * MOST_DIGITS + 16)
)
cdef str GROUP_GET_NUMS = statistics.GROUP_GET_NUMS
cdef str GROUP_GET_SIZE = statistics.GROUP_GET_SIZE
cdef str BROKER_GET_NUMS = statistics.BROKER_GET_NUMS


cdef class PopTerms:
    """What the checks of pops that ask alike came to. The fields stand in pops.pxd."""


cdef class SwiftPops:
    """Its state stands in pops.pxd."""

    def __init__(self, serving, popping, topics, groups, offsets, store, LeaseBook book, served):
        self.serving = serving
        self.popping = popping
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.log = store.log
        self.lanes = Lanes(store.queues)
        self.window = Window(store.log.files)
        self.book = book
        self.served = served
        self.terms = {}
        self.found = FOUND_TEXTS
        reader = store.reader
        self.recent_bytes = reader.recent_bytes
        self.most_bytes = min(MAX_READ_BYTES, reader.usual.bytes_in_memory)
        self.most_count = reader.usual.count_in_memory

    cdef Py_ssize_t take_safely(self, const uint8_t *frame, Py_ssize_t length, Answers answers) except -1:
        """The bytes of the frame, which is answered; 0 if it is no usual pop. An error is unusual as well."""
        cdef Pop pop
        cdef Py_ssize_t answered = answers.length, frame_bytes = read_pop(frame, length, &pop)
        if not frame_bytes:
            return 0
        try:
            if self.take(&pop, answers):
                return frame_bytes
        except Exception:
            logger.warning("a pop was not understood by the compiled code", exc_info=True)
        finally:
            self.window.close()
        answers.length = answered
        return 0

    cdef bint take(self, const Pop *pop, Answers answers) except -1:
        """One request: false, and nothing done, if it is unusual."""
        cdef PopTerms terms
        cdef int64_t now_ms, chance
        # With many more, storing a checkpoint would index them, and wake others who pop, between what is found and what is leased.
        if len(self.log.recent) > MOST_RECENT or self.offsets.resets or not self.book.open():
            return False
        terms = self.find_terms(pop)
        if terms is None or pop.queue_id >= terms.read_queues:
            return False
        now_ms = self.book.now_ms()
        if pop.born_ms and now_ms - pop.born_ms - pop.poll_ms > TOO_LATE:
            return False
        chance = self.popping.draw()
        if not self.find_messages(terms, pop, chance):
            self.popping.put_back(chance)
            return False
        self.lease_all(terms, pop, now_ms)
        if not self.lot_count:
            return False
        self.write_answer(terms, pop, now_ms, answers)
        self.count_given(terms)
        if self.rest:
            self.serving.wake_others(terms.party.topic, terms.party.group, pop.queue_id)
        return True

    # ---- may it be leased

    cdef PopTerms find_terms(self, const Pop *pop):
        """None if it is refused, or wants something unusual."""
        cdef PopTerms terms = self.last_terms
        cdef uint8_t key[MOST_KEY]
        cdef Py_ssize_t length = write_key(key, pop)
        if not length:
            return None
        if terms is None or PyBytes_GET_SIZE(terms.key) != length or memcmp(PyBytes_AS_STRING(terms.key), key, length) != 0:
            terms = self.terms.get(PyBytes_FromStringAndSize(<const char *>key, length))
        if terms is None or not self.still_hold(terms):
            try:
                terms = self.make_terms(pop)
            except RequestFailed:  # said by the ordinary way
                return None
            if terms is None:
                return None
            terms.key = PyBytes_FromStringAndSize(<const char *>key, length)
            if len(self.terms) >= MOST_TERMS:
                self.terms.clear()
                self.lane_count = 0
            self.terms[terms.key] = terms
        self.last_terms = terms
        return terms if terms.is_usual else None

    cdef bint still_hold(self, PopTerms terms) except -1:
        return (
            self.book.settings is terms.settings
            and (<dict>self.topics.all()).get(terms.party.topic) is terms.topic
            and (<dict>self.groups.all()).get(terms.party.group) is terms.group
            and terms.group.consume_enable
        )

    cdef PopTerms make_terms(self, const Pop *pop):
        cdef PopTerms terms = PopTerms()
        terms.party = self.book.party(pop.group, pop.topic)
        if terms.party is None:
            return None
        group_name, topic_name = terms.party.group, terms.party.topic
        settings = terms.settings = self.book.settings
        wishes = self.serving.check_pop(header_of(topic_name, group_name, pop))
        terms.topic = (<dict>self.topics.all()).get(topic_name)
        terms.group = (<dict>self.groups.all()).get(group_name)
        # What is in no table is made for each question, and could not be known again.
        if terms.topic is None or terms.group is None:
            return None
        terms.read_queues = min(terms.topic.read_queue_nums, MAX_INT)
        terms.retry_percent = settings.pop_from_retry_probability
        terms.retry_topics = (retry_topic_v1(group_name, topic_name), retry_topic_v2(group_name, topic_name))
        terms.kind = kind_of(topic_name).encode()
        terms.lanes = {}
        terms.is_usual = (
            wishes == (None, None, None) and not settings.enable_pop_message_threshold and not self.offsets.is_light(group_name)
        )
        return terms

    cdef Lane find_lane(self, PopTerms terms, int64_t queue_id):
        cdef Lane lane = terms.lanes.get(queue_id)
        if lane is None:
            if self.lane_count >= MOST_LANES:
                self.terms.clear()
                self.last_terms = None
                terms.lanes.clear()
                self.lane_count = 0
            self.lane_count += 1
            lane = terms.lanes[queue_id] = Lane(terms.party.topic, terms.party.group, queue_id)
        return lane

    # ---- messages

    cdef bint find_messages(self, PopTerms terms, const Pop *pop, int64_t chance) except -1:
        """`Popping.pop`, but for leasing them: false if there are none, or something is unusual."""
        cdef dict positions = self.offsets.queues(terms.party.group, terms.party.topic)
        cdef dict topics = self.topics.all()
        cdef bint has_retries = terms.retry_topics[0] in topics or terms.retry_topics[1] in topics
        cdef int64_t number, queue_id, position, queues = 1 if pop.queue_id != ANY_QUEUE else terms.read_queues
        cdef Lane lane
        self.lot_count = self.record_count = 0
        self.record_bytes = self.rest = 0
        if has_retries and chance < terms.retry_percent:
            return False
        for number in range(queues):
            queue_id = (chance + number) % queues if pop.queue_id == ANY_QUEUE else pop.queue_id
            known = positions.get(queue_id)
            if known is None or not 0 <= known <= MAX_LONG:  # it begins there
                return False
            position = known
            lane = self.find_lane(terms, queue_id)
            if self.record_count >= pop.most:
                self.rest += self.lanes.end_of(lane) - position
            elif not self.look_into(lane, queue_id, position, pop.most - self.record_count):
                return False
        if has_retries and self.record_count < pop.most:
            return False
        return self.record_count > 0

    cdef bint look_into(self, Lane lane, int64_t queue_id, int64_t offset, int64_t wanted) except -1:
        """`QueueReader._collect_plain`: a lot more, or nothing where nothing is; false if something is unusual."""
        cdef int64_t log_end = self.log.end, readable_end = self.log.readable_end
        cdef int64_t place, size, total = 0, most = max(1, min(wanted, self.most_count))
        cdef int count = 0, first = self.record_count
        cdef Py_ssize_t number
        cdef Extent extent
        cdef Lot *lot
        if not self.lanes.is_there(lane):
            return offset == 0
        if not self.lanes.read(lane, offset, wanted, &extent):
            return False
        if not extent.low <= offset <= extent.high:
            return False
        for number in range(extent.given):
            place, size = load64(extent.entries + number * ENTRY_BYTES), <int32_t>load32(extent.entries + number * ENTRY_BYTES + 8)
            if count and (total + size > self.most_bytes or count >= most):
                break
            # Subtracted, not added: an entry that is damaged may hold any number.
            if size <= 0 or place < 0 or place > readable_end or size > readable_end - place:
                return False
            if not count and log_end - place > self.recent_bytes:
                return False
            if first + count >= MOST_MESSAGES or self.record_bytes + size > LARGE_BYTES or self.window.find(place, size) == NULL:
                return False
            self.places[first + count] = place
            self.sizes[first + count] = size
            self.record_bytes += size
            total += size
            count += 1
        self.rest += extent.high - offset - count
        if not count:
            return offset == extent.high
        lot = &self.lots[self.lot_count]
        lot.queue_id, lot.start, lot.next, lot.record_bytes = queue_id, offset, offset + count, total
        self.lot_count += 1
        self.record_count += count
        return True

    cdef int lease_all(self, PopTerms terms, const Pop *pop, int64_t now_ms) except -1:
        """`Popping._take` for each lot. One that cannot be stored is not given; if the first cannot, none is."""
        cdef int64_t revive_queue = self.popping.next_revive_queue()
        cdef int number, record, kept_lots = 0, kept_records = 0, first = 0, count
        cdef Lot *lot
        for number in range(self.lot_count):
            lot = &self.lots[number]
            lot.pop_time_ms, lot.invisible_ms, lot.revive_queue = now_ms, pop.invisible_ms, revive_queue
            count = <int>(lot.next - lot.start)
            try:
                self.book.lease(terms.party, lot, now_ms)
            except OrbitError:
                if not kept_lots:
                    break
                self.record_bytes -= lot.record_bytes
            else:
                self.offsets.commit(terms.party.group, terms.party.topic, lot.queue_id, lot.next)
                for record in range(first, first + count):
                    self.places[kept_records] = self.places[record]
                    self.sizes[kept_records] = self.sizes[record]
                    kept_records += 1
                self.lots[kept_lots] = lot[0]
                kept_lots += 1
            first += count
        self.lot_count = kept_lots
        self.record_count = kept_records
        return 0

    # ---- answers

    cdef int write_answer(self, PopTerms terms, const Pop *pop, int64_t now_ms, Answers answers) except -1:
        """`serving._found`"""
        cdef uint8_t *frame = answers.reserve(HEADER_ROOM + self.record_bytes)
        cdef uint8_t *out = write_number(write_text(frame + PREFIX_BYTES, <bytes>self.found[0]), now_ms)
        cdef uint8_t *body
        cdef const uint8_t *record
        cdef int number
        out = write_number(write_text(out, <bytes>self.found[1]), pop.invisible_ms)
        out = write_number(write_text(out, <bytes>self.found[2]), self.lots[0].revive_queue)
        out = write_number(write_text(out, <bytes>self.found[3]), self.rest)
        out = write_text(out, <bytes>self.found[4])
        for number in range(self.lot_count):
            out = write_place(out, terms.kind, &self.lots[number], number > 0)
            out = write_number(out, self.lots[number].start)
        out = write_text(out, <bytes>self.found[5])
        for number in range(self.lot_count):
            out = write_offsets(write_place(out, terms.kind, &self.lots[number], number > 0), &self.lots[number])
        out = write_number(write_text(out, <bytes>self.found[6]), pop.opaque)
        body = out = write_text(out, <bytes>self.found[7])
        for number in range(self.record_count):
            record = self.window.find(self.places[number], self.sizes[number])
            if record == NULL:
                raise RuntimeError(f"the record at {self.places[number]} was there, and is not any more")
            memcpy(out, record, self.sizes[number])
            out += self.sizes[number]
        store32(frame, <uint32_t>(out - frame - 4))
        store32(frame + 4, <uint32_t>(body - frame - PREFIX_BYTES))
        answers.length += out - frame
        return 0

    cdef int count_given(self, PopTerms terms) except -1:
        cdef int number
        cdef int64_t messages
        for number in range(self.lot_count):
            messages = self.lots[number].next - self.lots[number].start
            self.book.count(GROUP_GET_NUMS, terms.party.name, messages)
            self.book.count(GROUP_GET_SIZE, terms.party.name, self.lots[number].record_bytes)
            self.book.count(BROKER_GET_NUMS, self.book.cluster, messages)
        if not self.served.fresh:
            self.served.unsettled.append(self.served)
        self.served.fresh += 1
        return 0


cdef inline uint8_t *write_place(uint8_t *out, bytes kind, const Lot *lot, bint is_behind_another) noexcept:
    """`lease_texts.start_entry`, up to its last part."""
    if is_behind_another:
        out = write_text(out, b";")
    out = write_number(write_text(write_text(out, kind), b" "), lot.queue_id)
    return write_text(out, b" ")


cdef inline uint8_t *write_offsets(uint8_t *out, const Lot *lot) noexcept nogil:
    cdef int64_t offset
    for offset in range(lot.start, lot.next):
        if offset != lot.start:
            out[0] = c","
            out += 1
        out = write_number(out, offset)
    return out


cdef Py_ssize_t write_key(uint8_t *key, const Pop *pop) noexcept nogil:
    """What pops that ask alike have in common, up to MOST_KEY bytes; how many those are, 0 if it is longer."""
    cdef uint8_t *out = key
    cdef Text texts[4]
    cdef int number
    texts[0] = pop.group
    texts[1] = pop.topic
    texts[2] = pop.expression_type
    texts[3] = pop.expression
    for number in range(4):
        if texts[number].length >= key + MOST_KEY - out:
            return 0
        if texts[number].length:
            memcpy(out, texts[number].start, texts[number].length)
        out += texts[number].length
        out[0] = c"\n"  # in none of the texts
        out += 1
    return out - key


cdef object header_of(str topic, str group, const Pop *pop):
    return PopMessage(
        consumer_group=group,
        topic=topic,
        queue_id=pop.queue_id,
        max_msg_nums=pop.most,
        invisible_time=pop.invisible_ms,
        poll_time=pop.poll_ms,
        init_mode=pop.init_mode,
        born_time=pop.born_ms,
        exp_type=text_of(pop.expression_type),
        exp=text_of(pop.expression),
    )


cdef str text_of(Text text):
    """None where it is not said."""
    return PyUnicode_DecodeASCII(<const char *>text.start, text.length, NULL) if text.length else None


cdef Py_ssize_t read_pop(const uint8_t *frame, Py_ssize_t length, Pop *pop) noexcept nogil:
    """The bytes of the frame; 0 if it is no usual pop, or not all there."""
    cdef Request request
    cdef Text queue_id, order, born
    cdef Py_ssize_t frame_bytes, header_bytes
    cdef uint32_t word
    if length <= 24 or frame[4] != 0 or memcmp(frame + PREFIX_BYTES, b'{"code":200050,', 15) != 0:
        return 0
    frame_bytes = <Py_ssize_t>load32(frame) + 4
    word = load32(frame + 4)
    header_bytes = word & 0xFFFFFF
    if frame_bytes > length or header_bytes + PREFIX_BYTES != frame_bytes or header_bytes > MOST_HEADER:
        return 0
    if not read_request(&request, frame + PREFIX_BYTES, header_bytes) or request.envelope.code != POP_MESSAGE:
        return 0
    if request.envelope.flag or not (
        find_text(&request, b"consumerGroup", 13, &pop.group)
        and find_text(&request, b"topic", 5, &pop.topic)
        and find_text(&request, b"queueId", 7, &queue_id)
        and read_number(queue_id.start, queue_id.length, ANY_QUEUE, MAX_INT, &pop.queue_id)
        and find_number(&request, b"maxMsgNums", 10, MOST_MESSAGES, &pop.most)
        and find_number(&request, b"invisibleTime", 13, LONGEST_LEASE, &pop.invisible_ms)
        and find_number(&request, b"pollTime", 8, MAX_LONG, &pop.poll_ms)
        and find_number(&request, b"initMode", 8, MAX_INT, &pop.init_mode)
        and find_said(&request, b"bornTime", 8, &born)
        and find_said(&request, b"order", 5, &order)
        and find_said(&request, b"expType", 7, &pop.expression_type)
        and find_said(&request, b"exp", 3, &pop.expression)
    ):
        return 0
    pop.born_ms = 0
    if born.length and not read_number(born.start, born.length, 0, MAX_LONG, &pop.born_ms):
        return 0
    if order.length and not is_text(order.start, order.length, b"false", 5):
        return 0
    if not pop.most or pop.invisible_ms < SHORTEST_LEASE:
        return 0
    pop.opaque = request.envelope.opaque
    return frame_bytes


cdef bint find_said(const Request *request, const char *name, Py_ssize_t length, Text *found) noexcept nogil:
    """A field that need not be there: then `found` has no length. False if there are several."""
    cdef int number, seen = 0
    found.start, found.length = NULL, 0
    for number in range(request.fields):
        if is_text(request.names[number].start, request.names[number].length, name, length):
            found[0] = request.values[number]
            seen += 1
    return seen <= 1
