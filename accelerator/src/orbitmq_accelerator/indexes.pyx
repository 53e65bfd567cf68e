"""Entering records into their queues and into the key index.

`usual_entries` is the loop of `orbitmq.storage.indexer.Indexer` for records of known queues and tags, `put_keys` that of
`orbitmq.storage.key_index.KeyIndex` for keys in ASCII. Of what a slave has copied, `index_copied` does both for records as they lie in the log, and
`usual_records` is what `orbitmq.storage.replica.Replica` finds in the rest. All leave what is unusual to them.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memset

from orbitmq_accelerator.byte_order cimport load32, load64, store32, store64
from orbitmq_accelerator.record cimport BODY_LENGTH_AT, HEAD_BYTES, PREFETCH

cdef enum:
    QUEUE_ENTRY_BYTES = 20
    KEY_ENTRY_BYTES = 20
    KEY_HEADER_BYTES = 40
    NO_QUEUE_ENTRY = 0x4  # in a record's system flag
    VALUE_END = 2
    MAX_INT = 0x7FFFFFFF
    BLANK = 32  # between keys
    LEAST_BYTES = 91  # of a record: its head, and the lengths of topic and properties
    HOSTS_MASK = 0x30  # in a record's system flag: its hosts are longer
    MOST_TOPIC_BYTES = 127

cdef uint32_t MAGIC_V1 = 0xDAA320A7


cdef class Run:
    """Entries that follow each other in one queue, as its file holds them."""

    cdef readonly object queue
    cdef readonly int64_t first  # queue offset
    cdef readonly int64_t start  # log offset of the first record
    cdef readonly int64_t end  # of the last one
    cdef readonly bytearray packed
    cdef int64_t next

    def __init__(self, queue, first, start):
        self.queue = queue
        self.first = self.next = first
        self.start = start
        self.packed = bytearray()


# What a record is indexed by: where its values stand in its properties. Of two with one name the later counts.
cdef struct Found:
    const char *unique_key
    Py_ssize_t unique_key_bytes
    const char *keys
    Py_ssize_t keys_bytes
    const char *tags
    Py_ssize_t tags_bytes
    const char *delay
    Py_ssize_t delay_bytes


cdef inline bint is_named(const char *entry, Py_ssize_t length, const char *name, Py_ssize_t name_bytes) noexcept nogil:
    """`name` ends with the separator. An entry without a value is none."""
    return length > name_bytes and memcmp(entry, name, name_bytes) == 0


cdef void look_through(const char *text, Py_ssize_t length, Found *found) noexcept nogil:
    cdef const char *end = text + length
    cdef const char *stop
    memset(found, 0, sizeof(Found))
    while text < end:
        stop = <const char *>memchr(text, VALUE_END, end - text)
        if stop == NULL:
            stop = end
        if is_named(text, stop - text, b"UNIQ_KEY\x01", 9):
            found.unique_key, found.unique_key_bytes = text + 9, stop - text - 9
        elif is_named(text, stop - text, b"TAGS\x01", 5):
            found.tags, found.tags_bytes = text + 5, stop - text - 5
        elif is_named(text, stop - text, b"KEYS\x01", 5):
            found.keys, found.keys_bytes = text + 5, stop - text - 5
        elif is_named(text, stop - text, b"DELAY\x01", 6):
            found.delay, found.delay_bytes = text + 6, stop - text - 6
        text = stop + 1


cdef int64_t level_of(const Found *found) noexcept nogil:
    """The delay level, 0 for none; -1 for one that is no small number."""
    cdef int64_t level = 0
    cdef Py_ssize_t at
    if found.delay_bytes > 9:
        return -1
    for at in range(found.delay_bytes):
        if not c"0" <= found.delay[at] <= c"9":
            return -1
        level = 10 * level + (found.delay[at] - c"0")
    return level


cdef inline bint is_same_value(const char *one, Py_ssize_t one_bytes, const char *other, Py_ssize_t other_bytes) noexcept nogil:
    if one == NULL or other == NULL:
        return one == other
    return one_bytes == other_bytes and memcmp(one, other, one_bytes) == 0


cdef object value_or_none(const char *value, Py_ssize_t length):
    return None if value == NULL else PyBytes_FromStringAndSize(value, length)


# Where the parts of a record are.
cdef struct Parts:
    int64_t size
    uint32_t sys_flag
    const uint8_t *topic  # its length, then its name
    const uint8_t *properties
    int64_t properties_bytes


cdef bint take_apart(const uint8_t *record, Py_ssize_t room, Parts *parts) noexcept nogil:
    """False if no usual record of at most `room` bytes begins there. Whether the body matches its sum is not looked at."""
    cdef const uint8_t *behind_topic
    cdef int64_t body_bytes
    if room < LEAST_BYTES:
        return False
    parts.size, parts.sys_flag, body_bytes = <int32_t>load32(record), load32(record + 36), load32(record + BODY_LENGTH_AT)
    if load32(record + 4) != MAGIC_V1 or parts.sys_flag & HOSTS_MASK:
        return False
    if not HEAD_BYTES + body_bytes + 3 <= parts.size <= room:
        return False
    parts.topic = record + HEAD_BYTES + body_bytes
    behind_topic = parts.topic + 1 + parts.topic[0]
    parts.properties = behind_topic + 2
    parts.properties_bytes = parts.size - (parts.properties - record)
    if parts.topic[0] > MOST_TOPIC_BYTES or parts.properties_bytes < 0:
        return False
    return <int16_t>(behind_topic[0] << 8 | behind_topic[1]) == parts.properties_bytes


cdef str topic_name(const uint8_t *topic):
    return PyBytes_FromStringAndSize(<const char *>topic + 1, topic[0]).decode("utf-8", "replace")


def usual_records(memory, Py_ssize_t at, Py_ssize_t limit, int64_t base, Py_ssize_t most):
    """Entries (orbitmq/message/log_entry.py) of the usual records from `at` on, one behind the other, that end before `limit`.

    `memory` begins at the log offset `base`. Whether the bodies match their sums is not looked at.
    """
    cdef list entries = []
    cdef Py_buffer view
    cdef Parts parts
    cdef const uint8_t *record
    cdef const uint8_t *last_topic = NULL
    name = None
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        limit = min(limit, view.len)
        while at < limit and len(entries) < most:
            record = <const uint8_t *>view.buf + at
            if not take_apart(record, limit - at, &parts):
                break
            if last_topic == NULL or memcmp(last_topic, parts.topic, parts.topic[0] + 1) != 0:
                name = topic_name(parts.topic)
                last_topic = parts.topic
            entries.append((
                (name, <int32_t>load32(record + 12)), base + at, parts.size, load64(record + 20),
                <int32_t>parts.sys_flag, load64(record + 56),
                PyBytes_FromStringAndSize(<const char *>parts.properties, parts.properties_bytes),
            ))
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    return entries


cdef uint32_t hashed(uint32_t value, const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """Java's hash of what `value` is the hash of and this text, as the key index keeps it: never negative."""
    cdef Py_ssize_t at
    for at in range(length):
        value = 31 * value + text[at]
    return value if value <= MAX_INT else (0 - value) & MAX_INT


cdef bint is_ascii(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint8_t any_bit = 0
    for at in range(length):
        any_bit |= text[at]
    return any_bit < 0x80


cdef Py_ssize_t keys_in(object texts) except -1:
    """How many keys a property KEYS names: they stand between blanks."""
    cdef const uint8_t *text
    cdef Py_ssize_t at, count = 0
    if texts is None:
        return 0
    text = <const uint8_t *>PyBytes_AS_STRING(<bytes>texts)
    for at in range(PyBytes_GET_SIZE(<bytes>texts)):
        count += text[at] != BLANK and (at == 0 or text[at - 1] == BLANK)
    return count


def count_keys(list records):
    """How many entries `put_keys` would make; -1 if it would take none."""
    cdef tuple record
    cdef Py_ssize_t own, count = 0
    for item in records:
        record = <tuple>item
        own = (1 if record[3] else 0) + keys_in(record[4])
        if not own:
            return -1
        count += own
        for text in record[3:5]:
            if text is not None and not is_ascii(<const uint8_t *>PyBytes_AS_STRING(<bytes>text), PyBytes_GET_SIZE(<bytes>text)):
                return -1
    return count


cdef class KeyWriter:
    """Enters keys into one file of the index, one after the other."""

    cdef uint8_t *data
    cdef int64_t slots
    cdef readonly int64_t number  # of the next entry
    cdef readonly int64_t newly_used  # slots

    cdef void put(self, uint32_t before, const uint8_t *key, Py_ssize_t length, int64_t offset, uint32_t seconds) noexcept:
        cdef uint32_t value = hashed(before, key, length)
        cdef int64_t slot_at = KEY_HEADER_BYTES + 4 * (value % self.slots)
        cdef int64_t older = load32(self.data + slot_at)
        cdef uint8_t *entry = self.data + KEY_HEADER_BYTES + 4 * self.slots + KEY_ENTRY_BYTES * self.number
        if not 0 < older < self.number:
            older = 0
            self.newly_used += 1
        store32(entry, value)
        store64(entry + 4, offset)
        store32(entry + 12, seconds)
        store32(entry + 16, <uint32_t>older)
        store32(self.data + slot_at, <uint32_t>self.number)
        self.number += 1


def put_keys(memory, int64_t slots, int64_t first, int64_t last, int64_t begin_ms, list records, topic_hash):
    """Enter the unique key of each record and those of its KEYS, from entry `first` on: how many slots are used for the first time, or -1.

    -1, and nothing entered, if one is not usual: it has no key at all, is not ASCII, its time is before `begin_ms`; or if entry `last`
    would be reached. `topic_hash` tells the hash of a topic, with which those of its keys go on.
    """
    cdef Py_buffer view
    cdef tuple record
    cdef bytes texts
    cdef KeyWriter writer = KeyWriter()
    cdef int64_t stored_at_ms, offset
    cdef uint32_t before = 0, seconds
    cdef dict known = {}
    cdef const uint8_t *text
    cdef Py_ssize_t at, begin, length
    cdef Py_ssize_t count = count_keys(records)
    topic = None
    if begin_ms <= 0 or first <= 1 or count < 0 or first + count > last:
        return -1
    for item in records:
        record = <tuple>item
        stored_at_ms = record[1]
        if stored_at_ms < begin_ms or (stored_at_ms - begin_ms) // 1000 > MAX_INT:
            return -1
    PyObject_GetBuffer(memory, &view, PyBUF_CONTIG)
    try:
        writer.data = <uint8_t *>view.buf
        writer.slots = slots
        writer.number = first
        writer.newly_used = 0
        for item in records:
            record = <tuple>item
            offset, stored_at_ms = record[0], record[1]
            seconds = <uint32_t>((stored_at_ms - begin_ms) // 1000)
            if record[2] is not topic:
                topic = record[2]
                if topic not in known:
                    known[topic] = topic_hash(topic)
                before = <uint32_t><int64_t>known[topic]
            if record[3]:
                texts = <bytes>record[3]
                writer.put(before, <const uint8_t *>PyBytes_AS_STRING(texts), PyBytes_GET_SIZE(texts), offset, seconds)
            if record[4] is None:
                continue
            texts = <bytes>record[4]
            text = <const uint8_t *>PyBytes_AS_STRING(texts)
            length = PyBytes_GET_SIZE(texts)
            begin = 0
            for at in range(length + 1):
                if at == length or text[at] == BLANK:
                    if at > begin:
                        writer.put(before, text + begin, at - begin, offset, seconds)
                    begin = at + 1
    finally:
        PyBuffer_Release(&view)
    return writer.newly_used


cdef class Keys(KeyWriter):
    """A file of the key index, as far as it can be written to without asking: `IndexFile.open_keys`."""

    cdef readonly int64_t end_offset, end_ms  # of the last record with keys
    cdef object topic_hash
    cdef Py_buffer view
    cdef int64_t last, begin_ms
    cdef bint is_open

    def __init__(self, memory, int64_t slots, int64_t first, int64_t last, int64_t begin_ms, topic_hash):
        """Entries `first` up to, but not with, `last` have room."""
        self.slots, self.number, self.last, self.begin_ms = slots, first, last, begin_ms
        self.topic_hash = topic_hash
        PyObject_GetBuffer(memory, &self.view, PyBUF_CONTIG)
        self.is_open = True
        self.data = <uint8_t *>self.view.buf

    def close(self):
        if self.is_open:
            self.is_open = False
            PyBuffer_Release(&self.view)

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(&self.view)

    cdef bint takes(self, const Found *found, int64_t stored_at_ms) noexcept:
        """Whether there is room for all keys of a record, and none is unusual."""
        cdef Py_ssize_t at, count = found.unique_key_bytes > 0
        for at in range(found.keys_bytes):
            count += found.keys[at] != BLANK and (at == 0 or found.keys[at - 1] == BLANK)
        return (
            self.number + count <= self.last
            and stored_at_ms >= self.begin_ms > 0
            and (stored_at_ms - self.begin_ms) // 1000 <= MAX_INT
            and is_ascii(<const uint8_t *>found.unique_key, found.unique_key_bytes)
            and is_ascii(<const uint8_t *>found.keys, found.keys_bytes)
        )

    cdef void enter(self, const Found *found, uint32_t before, int64_t offset, int64_t stored_at_ms) noexcept:
        """The unique key comes first, as in `KeyIndex.put`."""
        cdef const uint8_t *text = <const uint8_t *>found.keys
        cdef uint32_t seconds = <uint32_t>((stored_at_ms - self.begin_ms) // 1000)
        cdef Py_ssize_t at, begin = 0
        if found.unique_key == NULL and found.keys == NULL:
            return
        self.end_offset, self.end_ms = offset, stored_at_ms
        if found.unique_key_bytes:
            self.put(before, <const uint8_t *>found.unique_key, found.unique_key_bytes, offset, seconds)
        for at in range(found.keys_bytes + 1):
            if at == found.keys_bytes or text[at] == BLANK:
                if at > begin:
                    self.put(before, text + begin, at - begin, offset, seconds)
                begin = at + 1


cdef class Lane:
    """A queue that this pass has met."""

    cdef tuple queue
    cdef str topic
    cdef uint32_t topic_hash
    cdef bint is_delayed
    cdef Run run  # None if this pass has none for the queue yet


cdef class Entering:
    """One pass over records, in the order of the log."""

    cdef dict tag_codes, queues
    cdef object queue_type
    cdef str delay_topic
    cdef tuple delay_levels_ms

    # Where keys go: into `keys`; into a list, to be entered later; or nowhere, if both are None.
    cdef Keys keys
    cdef list waiting_keys

    cdef dict lanes  # by queue: half messages and those that were committed, say, come by turns

    # Of the record before.
    cdef Lane lane
    cdef bint knows_tags
    cdef const char *tags  # in properties that stay where they are until the pass ends
    cdef Py_ssize_t tags_bytes
    cdef int64_t tag_code

    cdef int choose(self, tuple queue) except -1:
        cdef Lane lane, before = self.lane
        if before is not None and queue is before.queue:
            return 0
        known = self.lanes.get(queue)
        if known is not None:
            self.lane = <Lane>known
            return 0
        lane = self.lane = self.lanes[queue] = Lane()
        lane.queue = queue
        lane.topic = queue[0]
        if before is not None and lane.topic is before.topic:
            lane.is_delayed, lane.topic_hash = before.is_delayed, before.topic_hash
        else:
            lane.is_delayed = lane.topic == self.delay_topic
            if self.keys is not None:
                lane.topic_hash = <uint32_t><int64_t>self.keys.topic_hash(lane.topic)
        return 0

    cdef bint enter(
        self, int64_t offset, int64_t size, int64_t queue_offset, int64_t stored_at_ms, const char *properties, Py_ssize_t length
    ) except -1:
        """A record of the queue that was chosen. False, and nothing done, if it is unusual."""
        cdef Lane lane = self.lane
        cdef Run run = lane.run
        cdef Found found
        cdef int64_t code, level = 0
        cdef Py_ssize_t packed_bytes
        cdef uint8_t *out
        look_through(properties, length, &found)
        if lane.is_delayed:
            level = level_of(&found)
        if level < 0:
            return False
        if level:
            code = stored_at_ms + <int64_t>self.delay_levels_ms[min(level, len(self.delay_levels_ms)) - 1]
        elif self.find_tags(&found):
            code = self.tag_code
        else:
            return False
        if self.keys is not None and not self.keys.takes(&found, stored_at_ms):
            return False
        if run is None:
            opened = self.queues.get(lane.queue)
            if type(opened) is not self.queue_type:
                return False
            run = lane.run = Run(opened, queue_offset, offset)
        elif run.next != queue_offset:
            return False
        packed_bytes = PyByteArray_GET_SIZE(run.packed)
        PyByteArray_Resize(run.packed, packed_bytes + QUEUE_ENTRY_BYTES)
        out = <uint8_t *>PyByteArray_AS_STRING(run.packed) + packed_bytes
        store64(out, offset)
        store32(out + 8, <uint32_t>size)
        store64(out + 12, code)
        run.end = offset + size
        run.next = queue_offset + 1
        if self.keys is not None:
            self.keys.enter(&found, lane.topic_hash, offset, stored_at_ms)
        elif self.waiting_keys is not None and (found.unique_key != NULL or found.keys != NULL):
            self.waiting_keys.append((
                offset, stored_at_ms, lane.topic, value_or_none(found.unique_key, found.unique_key_bytes),
                value_or_none(found.keys, found.keys_bytes),
            ))
        return True

    cdef bint find_tags(self, const Found *found) except -1:
        """Nearly always those of the message before. False if nobody has seen them yet."""
        if self.knows_tags and is_same_value(self.tags, self.tags_bytes, found.tags, found.tags_bytes):
            return True
        known = self.tag_codes.get(value_or_none(found.tags, found.tags_bytes))
        if known is None:
            return False
        self.knows_tags, self.tag_code = True, known
        self.tags, self.tags_bytes = found.tags, found.tags_bytes
        return True

    cdef bint enter_batch(self, int64_t offset, int64_t queue_offset, int64_t stored_at_ms, records) except -1:
        """Records of one queue that lie together in the log, from `offset` on: all of them, or none.

        Keys that were entered into their file stay there: whoever takes more care does not enter them twice.
        """
        cdef Py_buffer view
        cdef Run before = self.lane.run
        cdef int64_t next_before = 0, end_before = 0
        cdef Py_ssize_t packed_before = 0
        cdef list waiting_keys = self.waiting_keys, own_keys = None if waiting_keys is None else []
        cdef bint is_usual
        if before is not None:
            next_before, end_before, packed_before = before.next, before.end, PyByteArray_GET_SIZE(before.packed)
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        self.waiting_keys = own_keys
        try:
            is_usual = self.enter_records(<const uint8_t *>view.buf, view.len, offset, queue_offset, stored_at_ms)
        finally:
            self.waiting_keys = waiting_keys
            PyBuffer_Release(&view)
        if is_usual:
            if waiting_keys is not None:
                waiting_keys += own_keys
        elif before is not None:
            before.next, before.end = next_before, end_before
            PyByteArray_Resize(before.packed, packed_before)
        else:
            self.lane.run = None
        return is_usual

    cdef bint enter_records(
        self, const uint8_t *record, Py_ssize_t length, int64_t offset, int64_t queue_offset, int64_t stored_at_ms
    ) except -1:
        cdef const uint8_t *end = record + length
        cdef const uint8_t *properties
        cdef int64_t size
        while record < end:
            size = load32(record)
            properties = record + HEAD_BYTES + load32(record + BODY_LENGTH_AT)
            properties += 1 + properties[0] if load32(record + 4) == MAGIC_V1 else 2 + (properties[0] << 8 | properties[1])
            properties += 2
            # Records of a batch are of one kind, and mostly of one length: what is looked at of the next two is on its way meanwhile.
            PREFETCH(properties + size)
            PREFETCH(properties + 2 * size)
            if not self.enter(
                offset, size, queue_offset, stored_at_ms, <const char *>properties, record + size - properties
            ):
                return False
            record += size
            offset += size
            queue_offset += 1
        return True


def usual_entries(
    list batch, Py_ssize_t start, dict tag_codes, dict queues, queue_type, str delay_topic, tuple delay_levels_ms,
    Keys keys, list waiting_keys,
):
    """How many entries from `start` on are of usual records, and their runs.

    Their keys are entered into `keys`, or kept in `waiting_keys` if it is None; in neither, if both are.
    """
    cdef Entering entering = Entering()
    cdef Py_ssize_t at = start
    cdef tuple entry
    cdef bytes properties
    entering.tag_codes = tag_codes
    entering.queues = queues
    entering.lanes = {}
    entering.queue_type = queue_type
    entering.delay_topic = delay_topic
    entering.delay_levels_ms = delay_levels_ms
    entering.keys = keys
    entering.waiting_keys = waiting_keys
    while at < len(batch):
        entry = <tuple>batch[at]
        if <int64_t>entry[4] & NO_QUEUE_ENTRY:
            break
        entering.choose(<tuple>entry[0])
        if type(entry[6]) is bytes:
            properties = <bytes>entry[6]
            if not entering.enter(
                entry[1], entry[2], entry[3], entry[5], PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties)
            ):
                break
        elif not entering.enter_batch(entry[1], entry[3], entry[5], entry[6]):
            break
        at += 1
    return at - start, [(<Lane>lane).run for lane in entering.lanes.values() if (<Lane>lane).run is not None]


def index_copied(
    memory, Py_ssize_t at, Py_ssize_t limit, int64_t base, Py_ssize_t most, dict tag_codes, dict queues, queue_type,
    str delay_topic, Keys keys,
):
    """Where the usual records end that lie from `at` on, the store time of the last, and the runs of their queues.

    `memory` begins at the log offset `base`. Their keys are entered into `keys`, unless it is None.
    """
    cdef dict runs = {}, lane = None
    cdef Py_buffer view
    cdef Parts parts
    cdef Found found
    cdef Run run
    cdef const uint8_t *record
    cdef const uint8_t *last_topic = NULL
    cdef const char *last_tags = NULL
    cdef Py_ssize_t last_tags_bytes = 0, count = 0, length
    cdef int64_t code = 0, offset, queue_offset, stored_at_ms = 0
    cdef uint32_t topic_hash = 0
    cdef uint8_t *out
    name = None
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        limit = min(limit, view.len)
        while at < limit and count < most:
            record = <const uint8_t *>view.buf + at
            if not take_apart(record, limit - at, &parts) or parts.sys_flag & NO_QUEUE_ENTRY:
                break
            if last_topic == NULL or memcmp(last_topic, parts.topic, parts.topic[0] + 1) != 0:
                name = topic_name(parts.topic)
                if name == delay_topic:
                    break
                if keys is not None:
                    topic_hash = <uint32_t><int64_t>keys.topic_hash(name)
                last_topic = parts.topic
                lane = runs.setdefault(name, {})
            look_through(<const char *>parts.properties, parts.properties_bytes, &found)
            if not count or not is_same_value(last_tags, last_tags_bytes, found.tags, found.tags_bytes):
                known = tag_codes.get(value_or_none(found.tags, found.tags_bytes))
                if known is None:
                    break
                code, last_tags, last_tags_bytes = known, found.tags, found.tags_bytes
            if keys is not None and not keys.takes(&found, load64(record + 56)):
                break
            queue_offset = load64(record + 20)
            queue_id = <int32_t>load32(record + 12)
            known = lane.get(queue_id)
            if known is None:
                opened = queues.get((name, queue_id))
                if type(opened) is not queue_type:
                    break
                run = Run(opened, queue_offset, base + at)
                lane[queue_id] = run
            else:
                run = <Run>known
                if run.next != queue_offset:
                    break
            stored_at_ms, offset = load64(record + 56), base + at
            if keys is not None:
                keys.enter(&found, topic_hash, offset, stored_at_ms)
            length = PyByteArray_GET_SIZE(run.packed)
            PyByteArray_Resize(run.packed, length + QUEUE_ENTRY_BYTES)
            out = <uint8_t *>PyByteArray_AS_STRING(run.packed) + length
            store64(out, offset)
            store32(out + 8, <uint32_t>parts.size)
            store64(out + 12, code)
            run.end = offset + parts.size
            run.next = queue_offset + 1
            at += parts.size
            count += 1
    finally:
        PyBuffer_Release(&view)
    return at, stored_at_ms, [run for lane in runs.values() for run in lane.values()]
