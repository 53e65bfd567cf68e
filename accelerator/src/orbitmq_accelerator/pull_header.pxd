"""The header of a usual PULL_MESSAGE, JSON or binary.

As everywhere, false is the answer to what is unusual: `orbitmq.protocol.headers.pull` reads it then.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from orbitmq_accelerator.command_header cimport (
    Envelope, Text, find_quote, is_plain, is_text, read_binary_envelope, read_json_envelope, read_number,
)

cdef enum:
    # Fields that are texts; `seen` has a bit for each field.
    GROUP
    TOPIC
    SUBSCRIPTION
    EXPRESSION_TYPE
    TEXTS
    # Numbers.
    QUEUE_ID = TEXTS
    QUEUE_OFFSET
    MAX_COUNT
    SYS_FLAG
    COMMIT_OFFSET
    SUSPEND_MS
    SUB_VERSION
    MAX_BYTES
    BULK_BYTES
    REQUEST_SOURCE  # nobody asks for it
    ALL_FIELDS
    NOT_ASKED = ALL_FIELDS  # said by some clients, and of no meaning here: signatures count behind access control only
    # A pull without one of these is none.
    NEEDED = (1 << GROUP) | (1 << TOPIC) | (1 << QUEUE_ID) | (1 << QUEUE_OFFSET) | (1 << MAX_COUNT) | (1 << SYS_FLAG)


cdef struct Pull:
    Envelope envelope
    Text texts[TEXTS]
    int64_t numbers[ALL_FIELDS]  # those that are not seen: 0
    uint32_t seen


cdef inline int field_of(const uint8_t *name, Py_ssize_t length) noexcept nogil:
    """-1 for one that is not known."""
    if is_text(name, length, b"consumerGroup", 13):
        return GROUP
    if is_text(name, length, b"topic", 5):
        return TOPIC
    if is_text(name, length, b"queueId", 7):
        return QUEUE_ID
    if is_text(name, length, b"queueOffset", 11):
        return QUEUE_OFFSET
    if is_text(name, length, b"maxMsgNums", 10):
        return MAX_COUNT
    if is_text(name, length, b"sysFlag", 7):
        return SYS_FLAG
    if is_text(name, length, b"commitOffset", 12):
        return COMMIT_OFFSET
    if is_text(name, length, b"suspendTimeoutMillis", 20):
        return SUSPEND_MS
    if is_text(name, length, b"subscription", 12):
        return SUBSCRIPTION
    if is_text(name, length, b"subVersion", 10):
        return SUB_VERSION
    if is_text(name, length, b"expressionType", 14):
        return EXPRESSION_TYPE
    if is_text(name, length, b"maxMsgBytes", 11):
        return MAX_BYTES
    if is_text(name, length, b"bulkBytes", 9):
        return BULK_BYTES
    if is_text(name, length, b"requestSource", 13):
        return REQUEST_SOURCE
    if (
        is_text(name, length, b"bname", 5) or is_text(name, length, b"ReqT", 4) or is_text(name, length, b"proxyFrowardClientId", 20)
        or is_text(name, length, b"AccessKey", 9) or is_text(name, length, b"Signature", 9)
        or is_text(name, length, b"SecurityToken", 13)
    ):
        return NOT_ASKED
    return -1


cdef inline bint take_pull_field(
    void *request, const uint8_t *name, Py_ssize_t name_bytes, const uint8_t *value, Py_ssize_t length
) noexcept nogil:
    cdef Pull *pull = <Pull *>request
    cdef int field = field_of(name, name_bytes)
    cdef int64_t most = 0x7FFFFFFF
    if field == NOT_ASKED:
        return is_plain(value, length)
    if field < 0 or pull.seen & (1u << field):
        return False
    pull.seen |= 1u << field
    if field < TEXTS:
        pull.texts[field].start = value
        pull.texts[field].length = length
        return is_plain(value, length)
    if field == QUEUE_OFFSET or field == COMMIT_OFFSET or field == SUSPEND_MS or field == SUB_VERSION:
        most = 0x7FFFFFFFFFFFFFFF
    return read_number(value, length, -most, most, &pull.numbers[field])


cdef inline const uint8_t *read_pull_fields(void *request, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """`{"topic":"...",...}`; where it ends, or NULL."""
    cdef const uint8_t *name
    cdef const uint8_t *close
    cdef Py_ssize_t name_bytes
    if at >= end or at[0] != c"{":
        return NULL
    at += 1
    while True:
        if end - at < 6 or at[0] != c'"':
            return NULL
        name = at + 1
        close = find_quote(name, end)
        name_bytes = close - name
        if end - close < 4 or close[1] != c":" or close[2] != c'"':
            return NULL
        at = close + 3
        close = find_quote(at, end)
        if end - close < 2 or not take_pull_field(request, name, name_bytes, at, close - at):
            return NULL
        at = close + 2
        if close[1] == c"}":
            return at
        if close[1] != c",":
            return NULL


cdef inline bint read_pull(Pull *pull, const uint8_t *header, Py_ssize_t length, uint32_t codec) noexcept nogil:
    cdef int field
    pull.seen = 0
    for field in range(ALL_FIELDS):
        pull.numbers[field] = 0
    if codec == 0:
        return read_json_envelope(&pull.envelope, header, length, read_pull_fields, pull) and is_whole(pull)
    return (
        codec == 1 and read_binary_envelope(&pull.envelope, header, length, take_pull_field, pull) and is_whole(pull)
    )


cdef inline bint is_whole(const Pull *pull) noexcept nogil:
    """All that a pull must say, and no flag: it is a request that wants an answer."""
    return (
        pull.envelope.flag == 0 and pull.seen & NEEDED == NEEDED and pull.texts[GROUP].length and pull.texts[TOPIC].length
    )
