"""The JSON header of any request, taken apart: its numbers, and the names and texts of its fields.

As in `command_header`, what is unusual (escapes, other letters than ASCII, numbers among the fields, very many of them) is not read.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from orbitmq_accelerator.command_header cimport (
    Envelope, Text, find_quote, is_plain, read_json_envelope, read_number,
)

cdef enum:
    MOST_FIELDS = 24


cdef struct Request:
    Envelope envelope
    int fields
    Text names[MOST_FIELDS]
    Text values[MOST_FIELDS]


cdef inline const uint8_t *read_texts(void *given, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """`{"name":"value",...}` of a Request; where it ends, or NULL."""
    cdef Request *request = <Request *>given
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef const uint8_t *close
    if at >= end or at[0] != c"{":
        return NULL
    at += 1
    while True:
        if end - at < 6 or at[0] != c'"' or request.fields == MOST_FIELDS:
            return NULL
        name = at + 1
        close = find_quote(name, end)
        if end - close < 5 or close[1] != c":" or close[2] != c'"':
            return NULL
        value = close + 3
        at = find_quote(value, end)
        if end - at < 2 or not is_plain(value, at - value):
            return NULL
        request.names[request.fields].start = name
        request.names[request.fields].length = close - name
        request.values[request.fields].start = value
        request.values[request.fields].length = at - value
        request.fields += 1
        if at[1] == c"}":
            return at + 2
        if at[1] != c",":
            return NULL
        at += 2


cdef inline bint read_request(Request *request, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    request.fields = 0
    return read_json_envelope(&request.envelope, at, length, read_texts, request)


cdef inline bint find_text(const Request *request, const char *name, Py_ssize_t length, Text *found) noexcept nogil:
    """False if there is no field of this name, or more than one, or it is empty."""
    cdef int number, seen = 0
    found.start, found.length = NULL, 0
    for number in range(request.fields):
        if request.names[number].length == length and memcmp(request.names[number].start, name, length) == 0:
            found[0] = request.values[number]
            seen += 1
    return seen == 1 and found.length > 0


cdef inline bint find_number(const Request *request, const char *name, Py_ssize_t length, int64_t high, int64_t *number) noexcept nogil:
    """From 0 to `high`."""
    cdef Text text
    return find_text(request, name, length, &text) and read_number(text.start, text.length, 0, high, number)


cdef inline bint is_same_text(Text one, Text other) noexcept nogil:
    return one.length == other.length and memcmp(one.start, other.start, one.length) == 0
