"""The signature of a request: base64(HMAC-SHA1(key, the values in the order of their names, the body)).

What `orbitmq.protocol.signing` does, for the fields that a usual SEND_MESSAGE_V2 has.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.byte_order cimport store32

cdef extern from "sha1.h" nogil:
    cdef struct sha1_pieces:
        uint32_t state[5]
        size_t kept
    const uint32_t *sha1_first_state
    void (*sha1_blocks)(uint32_t *state, const uint8_t *data, size_t count) noexcept
    bint sha1_choose(bint allow_instructions) noexcept
    void sha1_go_on(sha1_pieces *pieces, const uint32_t *state) noexcept
    void sha1_add(sha1_pieces *pieces, const uint8_t *data, size_t length) noexcept
    void sha1_end(sha1_pieces *pieces) noexcept
    void sha1_whole(uint32_t *state, uint8_t *data, size_t length) noexcept
    void sha1_of_hash(uint32_t *state, const uint32_t *hash) noexcept

cdef enum:
    BLOCK_BYTES = 64
    DIGEST_BYTES = 20
    SIGNATURE_CHARACTERS = 28


# SHA-1 behind each of HMAC's two first blocks, which are made of the key alone.
cdef struct KeyStates:
    uint32_t inner[5]
    uint32_t outer[5]


cdef inline void prepare(KeyStates *key, const uint8_t *inner_block, const uint8_t *outer_block) noexcept nogil:
    memcpy(key.inner, sha1_first_state, sizeof(key.inner))
    memcpy(key.outer, sha1_first_state, sizeof(key.outer))
    sha1_blocks(key.inner, inner_block, 1)
    sha1_blocks(key.outer, outer_block, 1)


cdef inline void finish(const KeyStates *key, const uint32_t *inner, uint8_t *signature) noexcept nogil:
    """The 28 characters for what has this inner hash."""
    cdef const char *digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef uint8_t digest[DIGEST_BYTES + 1]
    cdef uint32_t outer[5]
    cdef uint32_t three
    cdef int group
    memcpy(outer, key.outer, sizeof(outer))
    sha1_of_hash(outer, inner)
    for group in range(5):
        store32(digest + 4 * group, outer[group])
    digest[DIGEST_BYTES] = 0
    for group in range(7):
        three = (digest[3 * group] << 16) | (digest[3 * group + 1] << 8) | digest[3 * group + 2]
        signature[4 * group] = digits[three >> 18]
        signature[4 * group + 1] = digits[three >> 12 & 63]
        signature[4 * group + 2] = digits[three >> 6 & 63]
        signature[4 * group + 3] = digits[three & 63]
    signature[SIGNATURE_CHARACTERS - 1] = c"="


cdef inline bint is_same(const uint8_t *one, const uint8_t *other) noexcept nogil:
    """Of two signatures; takes as long wherever they differ."""
    cdef uint8_t difference = 0
    cdef int index
    for index in range(SIGNATURE_CHARACTERS):
        difference |= one[index] ^ other[index]
    return difference == 0
