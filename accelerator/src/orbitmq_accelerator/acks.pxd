"""What other modules may use of the acks."""

from libc.stdint cimport uint8_t

cdef bint begins_with_an_ack(const uint8_t *data, Py_ssize_t length) noexcept nogil
