"""The header of a command, JSON or binary, around the fields of its kind; and what its values are read with.

Every function answers false, or NULL, for what is unusual. That need not be wrong: `orbitmq.protocol` reads it then, and knows.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from orbitmq_accelerator.byte_order cimport load32

cdef enum:
    FIXED_BYTES = 21  # of a binary header


cdef struct Text:
    const uint8_t *start
    Py_ssize_t length


cdef struct Envelope:
    int64_t code
    int64_t opaque
    int64_t flag
    bint has_fields


# `{"name":"value",...}` of one kind of request; where it ends, or NULL.
ctypedef const uint8_t *(*ObjectReader)(void *request, const uint8_t *at, const uint8_t *end) noexcept nogil
# One field of it, as it stands in a binary header.
ctypedef bint (*FieldReader)(
    void *request, const uint8_t *name, Py_ssize_t name_bytes, const uint8_t *value, Py_ssize_t length
) noexcept nogil


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


cdef inline const uint8_t *find_quote(const uint8_t *at, const uint8_t *end) noexcept nogil:
    while at < end and at[0] != c'"':
        at += 1
    return at


cdef inline bint read_json_envelope(
    Envelope *envelope, const uint8_t *at, Py_ssize_t length, ObjectReader read_fields, void *request
) noexcept nogil:
    cdef const uint8_t *end = at + length
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef Py_ssize_t key_bytes
    cdef int64_t number
    envelope.code = envelope.opaque = envelope.flag = 0
    envelope.has_fields = False
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
            if envelope.has_fields:
                return False
            envelope.has_fields = True
            at = read_fields(request, at, end)
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
                envelope.code = number
            elif is_text(key, key_bytes, b"opaque", 6):
                envelope.opaque = number
            elif is_text(key, key_bytes, b"flag", 4):
                envelope.flag = number
            elif not is_text(key, key_bytes, b"version", 7):
                return False
        if at >= end:
            return False
        if at[0] == c"}":
            return at + 1 == end
        if at[0] != c",":
            return False
        at += 1


cdef inline bint read_binary_envelope(
    Envelope *envelope, const uint8_t *at, Py_ssize_t length, FieldReader take_field, void *request
) noexcept nogil:
    cdef const uint8_t *end = at + length
    cdef const uint8_t *name
    cdef uint32_t value_bytes
    cdef Py_ssize_t name_bytes
    if length < FIXED_BYTES:
        return False
    envelope.code = (at[0] << 8) | at[1]
    envelope.opaque = <int32_t>load32(at + 5)
    envelope.flag = <int32_t>load32(at + 9)
    envelope.has_fields = True
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
        if value_bytes > end - at or not take_field(request, name, name_bytes, at, value_bytes):
            return False
        at += value_bytes
    return True
