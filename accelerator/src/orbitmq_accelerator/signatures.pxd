"""The signature of a request: base64(HMAC-SHA1(key, the values in the order of their names, the body)).

What `orbitmq.protocol.signing` does, for the fields that a usual SEND_MESSAGE_V2 has, and for several requests together.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from orbitmq_accelerator.byte_order cimport store32
from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.send_header cimport ACCESS_KEY, LETTERS, SECURITY_TOKEN, SIGNATURE, Send

cdef extern from "sha1_messages.h" nogil:
    enum:
        SHA1_LANES
        SHA1_ROOM_BEHIND
    cdef struct sha1_message:
        uint32_t state[5]
    const uint32_t *sha1_first_state
    void (*sha1_blocks)(uint32_t *state, const uint8_t *data, size_t count) noexcept
    bint sha1_choose(bint allow_instructions) noexcept
    int sha1_choose_lanes(int allowed) noexcept
    uint8_t *sha1_lay_out(sha1_message *message, const uint32_t *state, uint8_t *fields, size_t fields_bytes, const uint8_t *body, size_t body_bytes) noexcept
    void sha1_lay_out_hash(sha1_message *message, const uint32_t *state, const uint32_t *hash) noexcept
    void sha1_messages(sha1_message *messages, int count) noexcept

cdef enum:
    DIGEST_BYTES = 20
    SIGNATURE_CHARACTERS = 28
    PROPERTIES = 8  # the letter i
    SMALL_VALUE = 16


# SHA-1 behind each of HMAC's two first blocks, which are made of the key alone.
cdef struct KeyStates:
    uint32_t inner[5]
    uint32_t outer[5]


# Requests that say they are signed, until it is known whether they are.
cdef struct Claims:
    int count
    sha1_message messages[SHA1_LANES]
    KeyStates keys[SHA1_LANES]
    const uint8_t *signatures[SHA1_LANES]


cdef inline void prepare(KeyStates *key, const uint8_t *inner_block, const uint8_t *outer_block) noexcept nogil:
    memcpy(key.inner, sha1_first_state, sizeof(key.inner))
    memcpy(key.outer, sha1_first_state, sizeof(key.outer))
    sha1_blocks(key.inner, inner_block, 1)
    sha1_blocks(key.outer, outer_block, 1)


cdef inline uint8_t *put_value(uint8_t *out, Text value, const uint8_t *end) noexcept nogil:
    """`end`: of what can be read. Most values are a few characters, and a copy of so many bytes costs no call."""
    if value.length <= SMALL_VALUE and end - value.start >= SMALL_VALUE:
        memcpy(out, value.start, SMALL_VALUE)
    else:
        memcpy(out, value.start, value.length)
    return out + value.length


cdef inline uint8_t *put_values(uint8_t *out, const Send *send, const uint8_t *end) noexcept nogil:
    """In the order of their names: capitals come first."""
    cdef int letter
    out = put_value(out, send.values[ACCESS_KEY], end)
    if send.seen & (1u << SECURITY_TOKEN):
        out = put_value(out, send.values[SECURITY_TOKEN], end)
    for letter in range(LETTERS):
        if not send.seen & (1u << letter):
            continue
        if letter == PROPERTIES:  # not where the header is
            memcpy(out, send.properties, send.values[letter].length)
            out += send.values[letter].length
        else:
            out = put_value(out, send.values[letter], end)
    return out


cdef inline uint8_t *add_claim(Claims *claims, const KeyStates *key, const Send *send, uint8_t *room) noexcept nogil:
    """Its signature has the right length. `room` is as large as the header and SHA1_ROOM_BEHIND; what is left of it is given back."""
    cdef uint8_t *end = put_values(room, send, send.body + send.body_bytes)
    claims.keys[claims.count] = key[0]
    claims.signatures[claims.count] = send.values[SIGNATURE].start
    claims.count += 1
    return sha1_lay_out(&claims.messages[claims.count - 1], key.inner, room, end - room, send.body, send.body_bytes)


cdef inline int count_right(Claims *claims) noexcept nogil:
    """How many at the front are rightly signed."""
    cdef uint8_t wanted[SIGNATURE_CHARACTERS]
    cdef uint32_t inner[5]
    cdef int number
    sha1_messages(claims.messages, claims.count)
    for number in range(claims.count):
        memcpy(inner, claims.messages[number].state, sizeof(inner))
        sha1_lay_out_hash(&claims.messages[number], claims.keys[number].outer, inner)
    sha1_messages(claims.messages, claims.count)
    for number in range(claims.count):
        write_signature(claims.messages[number].state, wanted)
        if not is_same(wanted, claims.signatures[number]):
            return number
    return claims.count


cdef inline void write_signature(const uint32_t *hash, uint8_t *signature) noexcept nogil:
    """Its 28 characters."""
    cdef const char *digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef uint8_t digest[DIGEST_BYTES + 1]
    cdef uint32_t three
    cdef int group
    for group in range(5):
        store32(digest + 4 * group, hash[group])
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
