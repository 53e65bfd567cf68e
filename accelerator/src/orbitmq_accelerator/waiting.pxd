"""What a message asks for that has to wait: `DELAY`, `TIMER_...` and `TRAN_MSG` among its properties; and whether they mean anything at all.

As everywhere, what is unusual is not answered: `orbitmq.broker.sending` and `timer_requests` know what it means.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from orbitmq_accelerator.command_header cimport read_number

cdef enum:
    MOST_ENTRIES = 48
    NAME_END = 1
    VALUE_END = 2
    LONGEST_NUMBER = 1_000_000_000_000_000

cdef enum Kind:
    UNCLEAR = 0
    DELAY_LEVEL = 1
    TIMER_SECONDS = 2  # from now on
    TIMER_MS = 3
    TIMER_MOMENT = 4
    HALF_MESSAGE = 5


cdef enum:  # what properties mean to a broker, a bit for each
    HAS_TO_WAIT = 1
    IS_INNER_BATCH = 2
    HAS_HANDLE = 4  # of a lease, which no sender can know


cdef struct Wish:
    Kind kind
    int64_t number  # the level, the delay or the moment


cdef inline bint is_name(const uint8_t *name, Py_ssize_t length, const char *known, Py_ssize_t known_length) noexcept nogil:
    return length == known_length and memcmp(name, known, length) == 0


cdef inline int meaning_of(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """By the names alone: they stand at the beginning, and behind the end of each value. One look at each costs less than a search."""
    cdef const uint8_t *end = text + length
    cdef int found = 0
    while end - text > 6:  # the shortest of them and a value
        if text[0] == c"T":
            if memcmp(text, b"TIMER_", 6) == 0 or (end - text > 9 and memcmp(text, b"TRAN_MSG\x01", 9) == 0):
                found |= HAS_TO_WAIT
        elif text[0] == c"D":
            if memcmp(text, b"DELAY\x01", 6) == 0:
                found |= HAS_TO_WAIT
        elif text[0] == c"I":
            if end - text > 10 and memcmp(text, b"INNER_NUM\x01", 10) == 0:
                found |= IS_INNER_BATCH
        elif text[0] == c"P":
            if memcmp(text, b"POP_CK\x01", 7) == 0:
                found |= HAS_HANDLE
        text = <const uint8_t *>memchr(text, VALUE_END, end - text)
        if text == NULL:
            break
        text += 1
    return found


cdef inline bint take_wish(
    Wish *wish, const uint8_t *name, Py_ssize_t length, const uint8_t *value, Py_ssize_t value_bytes
) noexcept nogil:
    """False if this property makes the message an unusual one."""
    cdef Kind kind
    if is_name(name, length, b"DELAY", 5):
        kind = DELAY_LEVEL
    elif is_name(name, length, b"TIMER_DELAY_SEC", 15):
        kind = TIMER_SECONDS
    elif is_name(name, length, b"TIMER_DELAY_MS", 14):
        kind = TIMER_MS
    elif is_name(name, length, b"TIMER_DELIVER_MS", 16):
        kind = TIMER_MOMENT
    elif is_name(name, length, b"TRAN_MSG", 8):
        kind = HALF_MESSAGE
    else:
        return not (
            (length > 6 and memcmp(name, b"TIMER_", 6) == 0)
            or is_name(name, length, b"INNER_NUM", 9)
            or is_name(name, length, b"POP_CK", 6)
            or is_name(name, length, b"REAL_TOPIC", 10)
            or is_name(name, length, b"REAL_QID", 8)
            or is_name(name, length, b"__transactionId__", 17)
        )
    if wish.kind != UNCLEAR:  # two at once
        return False
    wish.kind = kind
    if kind == HALF_MESSAGE:
        return is_name(value, value_bytes, b"true", 4)
    return read_number(value, value_bytes, 1, LONGEST_NUMBER, &wish.number)


cdef inline bint read_wish(const uint8_t *text, Py_ssize_t length, Wish *wish) noexcept nogil:
    """Of properties whose names differ, each with a value and ended: only then can others be added behind them."""
    cdef const uint8_t *names[MOST_ENTRIES]
    cdef Py_ssize_t lengths[MOST_ENTRIES]
    cdef const uint8_t *end = text + length
    cdef const uint8_t *name_end
    cdef const uint8_t *stop
    cdef int count = 0, earlier
    wish.kind = UNCLEAR
    while text < end:
        stop = <const uint8_t *>memchr(text, VALUE_END, end - text)
        if stop == NULL or count == MOST_ENTRIES:
            return False
        name_end = <const uint8_t *>memchr(text, NAME_END, stop - text)
        if name_end == NULL or name_end == text or name_end + 1 == stop:
            return False
        for earlier in range(count):
            if lengths[earlier] == name_end - text and memcmp(names[earlier], text, name_end - text) == 0:
                return False
        names[count] = text
        lengths[count] = name_end - text
        count += 1
        if not take_wish(wish, text, name_end - text, name_end + 1, stop - name_end - 1):
            return False
        text = stop + 1
    return wish.kind != UNCLEAR
