"""The header of a usual SEND_MESSAGE_V2, JSON or binary, signed or not, and its properties.

Every function answers false, or NULL, for what is unusual. That need not be wrong: `orbitmq.protocol` reads it then, and knows.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.command_header cimport (
    Envelope, Text, find_quote, is_plain, is_text, read_binary_envelope, read_json_envelope, read_number,
)

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef enum:
    SPECIAL_FLAGS = 0x10 | 0x20 | 0x80  # IPv6 hosts, inner batch
    PREPARED_FLAG = 0x4  # or rolled back
    COMMITTED_FLAG = 0x8
    LETTERS = 14  # a to n
    # Where the fields of a signature stand among a send's; `seen` has a bit for each.
    ACCESS_KEY = LETTERS
    SECURITY_TOKEN
    SIGNATURE
    ALL_FIELDS


cdef struct Send:
    Envelope envelope
    int64_t queue_id
    int64_t sys_flag
    int64_t born_at_ms
    int64_t flag
    int64_t reconsume_times
    Text values[ALL_FIELDS]  # of those that are seen; properties unescaped
    uint8_t *properties  # in a buffer of their own
    Py_ssize_t properties_bytes
    uint32_t seen  # a bit for each field
    bint is_batch
    const uint8_t *body  # behind the header
    Py_ssize_t body_bytes


cdef inline bint keep(Send *send, int field, const uint8_t *value, Py_ssize_t length) noexcept nogil:
    if send.seen & (1u << field) or length == 0:
        return False
    send.seen |= 1u << field
    send.values[field].start = value
    send.values[field].length = length
    return True


cdef inline bint take_field(Send *send, uint8_t letter, const uint8_t *value, Py_ssize_t length) noexcept nogil:
    """One field of SEND_MESSAGE_V2 other than its properties."""
    cdef int64_t unused
    if letter < c"a" or letter > c"n" or letter == c"i" or not keep(send, letter - c"a", value, length):
        return False
    if letter == c"e":
        return read_number(value, length, 0, 0x7FFFFFFF, &send.queue_id)
    if letter == c"f":
        return read_number(value, length, 0, 0x7FFFFFFF, &send.sys_flag) and not send.sys_flag & SPECIAL_FLAGS
    if letter == c"g":
        return read_number(value, length, 0, 0x7FFFFFFFFFFFFFFF, &send.born_at_ms)
    if letter == c"h":
        return read_number(value, length, -0x7FFFFFFF, 0x7FFFFFFF, &send.flag)
    if letter == c"j":
        return read_number(value, length, 0, 0x7FFFFFFF, &send.reconsume_times)
    if letter == c"d" or letter == c"l":
        return read_number(value, length, -0x7FFFFFFF, 0x7FFFFFFF, &unused)
    if letter == c"m":
        send.is_batch = is_text(value, length, b"true", 4)
        return send.is_batch or is_text(value, length, b"false", 5)
    if letter == c"k":
        return is_text(value, length, b"false", 5) or is_text(value, length, b"true", 4)
    return is_plain(value, length)


cdef inline bint take_named(Send *send, const uint8_t *name, Py_ssize_t name_bytes, const uint8_t *value, Py_ssize_t length) noexcept nogil:
    """One field of a signature. Whether two of them are plain is left to who looks at them: `has_plain_signature`, or a comparison."""
    if is_text(name, name_bytes, b"AccessKey", 9):
        return keep(send, ACCESS_KEY, value, length)
    if is_text(name, name_bytes, b"Signature", 9):
        return keep(send, SIGNATURE, value, length)
    return is_text(name, name_bytes, b"SecurityToken", 13) and keep(send, SECURITY_TOKEN, value, length) and is_plain(value, length)


cdef inline bint has_plain_signature(const Send *send) noexcept nogil:
    cdef int field
    for field in range(ACCESS_KEY, ALL_FIELDS):
        if send.seen & (1u << field) and not is_plain(send.values[field].start, send.values[field].length):
            return False
    return True


cdef inline bint take_properties(Send *send, Py_ssize_t length) noexcept nogil:
    """They are in their buffer. Batches mostly have none; a second time is unusual."""
    send.properties_bytes = length
    send.seen |= 1u << (c"i" - c"a")  # who calls has looked that it is the first
    send.values[c"i" - c"a"].start = send.properties
    send.values[c"i" - c"a"].length = length
    return True


cdef inline int hex_digit(uint8_t character) noexcept nogil:
    if c"0" <= character <= c"9":
        return character - c"0"
    if c"a" <= (character | 0x20) <= c"f":
        return (character | 0x20) - c"a" + 10
    return -1


cdef inline const uint8_t *unescape(Send *send, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The JSON text from behind its opening quote is the properties; where its closing quote is, or NULL."""
    cdef uint8_t *out = send.properties
    cdef uint8_t character
    cdef int high, low
    while at < end:
        character = at[0]
        if character == c'"':
            return at if take_properties(send, out - send.properties) else NULL
        if character < 0x20 or character >= 0x7F:
            return NULL
        if character == c"\\":
            # The two separators, as every client writes them; other escapes are rare.
            if end - at < 6 or at[1] != c"u" or at[2] != c"0" or at[3] != c"0":
                return NULL
            high, low = hex_digit(at[4]), hex_digit(at[5])
            if high != 0 or low < 1:
                return NULL
            character = low
            at += 5
        out[0] = character
        out += 1
        at += 1
    return NULL


cdef inline const uint8_t *read_fields(void *request, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """`{"a":"...",...}`; where it ends, or NULL."""
    cdef Send *send = <Send *>request
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
        close = name + 1 if name[1] == c'"' else find_quote(name, end)
        name_bytes = close - name
        if end - close < 4 or close[1] != c":" or close[2] != c'"':
            return NULL
        at = close + 3
        if name_bytes == 1 and name[0] == c"i":
            if send.seen & (1u << (c"i" - c"a")):  # its buffer is in use
                return NULL
            close = unescape(send, at, end)
            if close == NULL:
                return NULL
        else:
            close = find_quote(at, end)
            if not (
                take_field(send, name[0], at, close - at) if name_bytes == 1
                else take_named(send, name, name_bytes, at, close - at)
            ):
                return NULL
        if end - close < 2:
            return NULL
        at = close + 2
        if close[1] == c"}":
            return at
        if close[1] != c",":
            return NULL


cdef inline bint take_binary_field(
    void *request, const uint8_t *name, Py_ssize_t name_bytes, const uint8_t *value, Py_ssize_t length
) noexcept nogil:
    cdef Send *send = <Send *>request
    cdef Py_ssize_t index
    if name_bytes != 1:
        return take_named(send, name, name_bytes, value, length)
    if name[0] != c"i":
        return take_field(send, name[0], value, length)
    if send.seen & (1u << (c"i" - c"a")):  # its buffer is in use
        return False
    for index in range(length):
        if value[index] == 0 or value[index] >= 0x7F:
            return False
    memcpy(send.properties, value, length)
    return take_properties(send, length)


cdef inline bint read_json(Send *send, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    return read_json_envelope(&send.envelope, at, length, read_fields, send)


cdef inline bint read_binary(Send *send, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    return read_binary_envelope(&send.envelope, at, length, take_binary_field, send)


cdef inline bint contains(const Send *send, const char *text, size_t length) noexcept nogil:
    return memmem(send.properties, send.properties_bytes, text, length) != NULL


cdef inline const uint8_t *find_unique_key(const Send *send, Py_ssize_t *length) noexcept nogil:
    """The value of the last UNIQ_KEY, if it is all letters and digits; else NULL."""
    cdef const uint8_t *start = send.properties
    cdef const uint8_t *end = start + send.properties_bytes
    cdef const uint8_t *at = start
    cdef const uint8_t *found = NULL
    while True:
        at = <const uint8_t *>memmem(at, end - at, b"UNIQ_KEY\x01", 9)
        if at == NULL:
            break
        if at == start or (at - 1)[0] == 2:
            found = at + 9
        at += 9
    if found == NULL:
        return NULL
    at = found
    while at < end and at[0] != 2:
        if not (c"0" <= at[0] <= c"9" or c"a" <= (at[0] | 0x20) <= c"z"):
            return NULL
        at += 1
    length[0] = at - found
    return found if at > found else NULL
