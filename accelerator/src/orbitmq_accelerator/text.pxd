"""Writing texts: numbers, hexadecimal digits, URL-safe base64."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef inline uint8_t *write_text(uint8_t *out, bytes text) noexcept:
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out + PyBytes_GET_SIZE(text)


cdef inline uint8_t *write_number(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        out[0] = c"-"
        out += 1
        rest = 0 - rest  # the least number has no opposite among the signed ones
    while True:
        digits[count] = c"0" + rest % 10
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef inline uint8_t *write_hex(uint8_t *out, uint64_t value) noexcept nogil:
    cdef const char *digits = b"0123456789ABCDEF"
    cdef int shift
    for shift in range(60, -4, -4):
        out[0] = digits[(value >> shift) & 15]
        out += 1
    return out


cdef inline uint8_t *write_base64(uint8_t *out, const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef const char *digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    cdef uint32_t three
    cdef Py_ssize_t at = 0
    while at < length:
        three = data[at] << 16
        if at + 1 < length:
            three |= data[at + 1] << 8
        if at + 2 < length:
            three |= data[at + 2]
        out[0] = digits[three >> 18]
        out[1] = digits[three >> 12 & 63]
        out[2] = digits[three >> 6 & 63] if at + 1 < length else c"="
        out[3] = digits[three & 63] if at + 2 < length else c"="
        out += 4
        at += 3
    return out
