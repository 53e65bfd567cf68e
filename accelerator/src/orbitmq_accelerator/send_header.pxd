"""The header of a usual SEND_MESSAGE_V2, JSON or binary, signed or not, and its properties.

Every function answers false, or NULL, for what is unusual. That need not be wrong: `orbitmq.protocol` reads it then, and knows.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from orbitmq_accelerator.byte_order cimport load32

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef enum:
    FIXED_BYTES = 21  # of a binary header
    SPECIAL_FLAGS = 0x10 | 0x20 | 0x80  # IPv6 hosts, inner batch
    PREPARED_FLAG = 0x4  # or rolled back
    COMMITTED_FLAG = 0x8
    LETTERS = 14  # a to n
    # Where the fields of a signature stand among a send's; `seen` has a bit for each.
    ACCESS_KEY = LETTERS
    SECURITY_TOKEN
    SIGNATURE
    ALL_FIELDS


cdef struct Text:
    const uint8_t *start
    Py_ssize_t length


cdef struct Send:
    int64_t code
    int64_t opaque
    int64_t command_flag
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


cdef inline bint read_number(const uint8_t *text, Py_ssize_t length, int64_t low, int64_t high, int64_t *number) noexcept nogil:
    cdef bint negative = length > 0 and text[0] == c"-"
    cdef int64_t value = 0
    cdef Py_ssize_t at = 1 if negative else 0
    if length - at < 1 or length - at > 18 or (text[at] == c"0" and length - at > 1):
        return False
    while at < length:
        if not c"0" <= text[at] <= c"9":
            return False
        value = 10 * value + (text[at] - c"0")
        at += 1
    number[0] = -value if negative else value
    return low <= number[0] <= high and not (negative and value == 0)


cdef inline bint is_text(const uint8_t *value, Py_ssize_t length, const char *text, Py_ssize_t text_length) noexcept nogil:
    return length == text_length and memcmp(value, text, length) == 0


cdef inline bint is_plain(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """Printable ASCII that JSON needs no escapes for."""
    cdef Py_ssize_t at
    for at in range(length):
        if text[at] < 0x20 or text[at] >= 0x7F or text[at] == c'"' or text[at] == c"\\":
            return False
    return True


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
    """One field of a signature."""
    cdef int field
    if is_text(name, name_bytes, b"AccessKey", 9):
        field = ACCESS_KEY
    elif is_text(name, name_bytes, b"Signature", 9):
        field = SIGNATURE
    elif is_text(name, name_bytes, b"SecurityToken", 13):
        field = SECURITY_TOKEN
    else:
        return False
    return keep(send, field, value, length) and is_plain(value, length)


cdef inline bint take_properties(Send *send, Py_ssize_t length) noexcept nogil:
    """They are in their buffer. None, or a second time, is unusual."""
    send.properties_bytes = length
    return keep(send, c"i" - c"a", send.properties, length)


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


cdef inline const uint8_t *find_quote(const uint8_t *at, const uint8_t *end) noexcept nogil:
    while at < end and at[0] != c'"':
        at += 1
    return at


cdef inline const uint8_t *read_fields(Send *send, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """`{"a":"...",...}`; where it ends, or NULL."""
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


cdef inline bint read_json(Send *send, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t *end = at + length
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef Py_ssize_t key_bytes
    cdef int64_t number
    if length < 2 or at[0] != c"{" or at[length - 1] != c"}":
        return False
    at += 1
    while True:
        if end - at < 4 or at[0] != c'"':
            return False
        key = at + 1
        at = find_quote(key, end)
        key_bytes = at - key
        if end - at < 3 or at[1] != c":":
            return False
        at += 2
        if is_text(key, key_bytes, b"extFields", 9):
            if send.seen:
                return False
            at = read_fields(send, at, end)
            if at == NULL:
                return False
        elif at[0] == c'"':
            value = at + 1
            at = find_quote(value, end)
            if not is_plain(value, at - value) or not (
                is_text(key, key_bytes, b"language", 8) or is_text(key, key_bytes, b"serializeTypeCurrentRPC", 23)
            ):
                return False
            at += 1
        else:
            value = at
            while at < end and at[0] != c"," and at[0] != c"}":
                at += 1
            if not read_number(value, at - value, -0x7FFFFFFF, 0x7FFFFFFF, &number):
                return False
            if is_text(key, key_bytes, b"code", 4):
                send.code = number
            elif is_text(key, key_bytes, b"opaque", 6):
                send.opaque = number
            elif is_text(key, key_bytes, b"flag", 4):
                send.command_flag = number
            elif not is_text(key, key_bytes, b"version", 7):
                return False
        if at >= end:
            return False
        if at[0] == c"}":
            return at + 1 == end
        if at[0] != c",":
            return False
        at += 1


cdef inline bint read_binary(Send *send, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t *end = at + length
    cdef const uint8_t *name
    cdef uint32_t value_bytes
    cdef Py_ssize_t index, name_bytes
    if length < FIXED_BYTES:
        return False
    send.code = (at[0] << 8) | at[1]
    send.opaque = <int32_t>load32(at + 5)
    send.command_flag = <int32_t>load32(at + 9)
    if load32(at + 13) != 0 or load32(at + 17) != length - FIXED_BYTES:
        return False
    at += FIXED_BYTES
    while at < end:
        if end - at < 7:
            return False
        name = at + 2
        name_bytes = (at[0] << 8) | at[1]
        if name_bytes > end - at - 6:
            return False
        at = name + name_bytes + 4
        value_bytes = load32(name + name_bytes)
        if value_bytes > end - at:
            return False
        if name_bytes == 1 and name[0] == c"i":
            if send.seen & (1u << (c"i" - c"a")):  # its buffer is in use
                return False
            for index in range(value_bytes):
                if at[index] == 0 or at[index] >= 0x7F:
                    return False
            memcpy(send.properties, at, value_bytes)
            if not take_properties(send, value_bytes):
                return False
        elif not (
            take_field(send, name[0], at, value_bytes) if name_bytes == 1
            else take_named(send, name, name_bytes, at, value_bytes)
        ):
            return False
        at += value_bytes
    return True


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
