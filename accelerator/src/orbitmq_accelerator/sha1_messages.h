/* SHA-1 of messages that lie in memory in several stretches, behind the block of a key; many of them together where that is quicker.
 *
 *   fields ... and the body's first bytes | the body, where it was received | its last bytes, and what SHA-1 puts behind them
 */
#ifndef ORBITMQ_SHA1_MESSAGES_H
#define ORBITMQ_SHA1_MESSAGES_H

#include "sha1_lanes.h"

#define SHA1_STRETCHES 3
#define SHA1_SHORT_BODY 256                                       /* is worth a copy */
#define SHA1_ROOM_BEHIND (SHA1_SHORT_BODY + 3 * SHA1_BLOCK_BYTES) /* that fields need */
#define SHA1_FEWEST_TOGETHER 5                                    /* fewer are quicker one after the other */

struct sha1_message {
    uint32_t state[5]; /* behind the key's block; of the whole message once it is hashed */
    const uint8_t *at[SHA1_STRETCHES];
    size_t blocks[SHA1_STRETCHES];
    uint8_t end[2 * SHA1_BLOCK_BYTES];
};

/* What a message of so many bytes ends with, block of the key included: `data` has room for two blocks behind it. In blocks. */
static inline size_t sha1_pad(uint8_t *data, size_t length, uint64_t size) {
    size_t padded = (length + 9 + SHA1_BLOCK_BYTES - 1) / SHA1_BLOCK_BYTES * SHA1_BLOCK_BYTES;
    data[length] = 0x80;
    memset(data + length + 1, 0, padded - length - 9);
    size = __builtin_bswap64(size * 8);
    memcpy(data + padded - 8, &size, 8);
    return padded / SHA1_BLOCK_BYTES;
}

/* `fields` have SHA1_ROOM_BEHIND; they and the body stay where they are until it is hashed. The end of what is in use behind fields. */
static inline uint8_t *sha1_lay_out(
    struct sha1_message *message, const uint32_t *state, uint8_t *fields, size_t fields_bytes, const uint8_t *body, size_t body_bytes) {
    uint64_t size = SHA1_BLOCK_BYTES + (uint64_t)fields_bytes + body_bytes;
    memcpy(message->state, state, sizeof message->state);
    message->at[0] = fields;
    if (body_bytes <= SHA1_SHORT_BODY) {
        memcpy(fields + fields_bytes, body, body_bytes);
        message->blocks[0] = sha1_pad(fields, fields_bytes + body_bytes, size);
        message->blocks[1] = message->blocks[2] = 0;
        return fields + SHA1_BLOCK_BYTES * message->blocks[0];
    }
    size_t first = -fields_bytes % SHA1_BLOCK_BYTES, last = (body_bytes - first) % SHA1_BLOCK_BYTES;
    memcpy(fields + fields_bytes, body, first);
    memcpy(message->end, body + body_bytes - last, last);
    message->blocks[0] = (fields_bytes + first) / SHA1_BLOCK_BYTES;
    message->at[1] = body + first;
    message->blocks[1] = (body_bytes - first) / SHA1_BLOCK_BYTES;
    message->at[2] = message->end;
    message->blocks[2] = sha1_pad(message->end, last, size);
    return fields + SHA1_BLOCK_BYTES * message->blocks[0];
}

/* The second message of HMAC: the first one's hash. */
static inline void sha1_lay_out_hash(struct sha1_message *message, const uint32_t *state, const uint32_t *hash) {
    memcpy(message->state, state, sizeof message->state);
    for (int index = 0; index < 5; index++) {
        uint32_t word = __builtin_bswap32(hash[index]);
        memcpy(message->end + 4 * index, &word, 4);
    }
    message->at[0] = message->end;
    message->blocks[0] = sha1_pad(message->end, SHA1_DIGEST_BYTES, SHA1_BLOCK_BYTES + SHA1_DIGEST_BYTES);
    message->blocks[1] = message->blocks[2] = 0;
}

static inline void sha1_alone(struct sha1_message *message) {
    for (int stretch = 0; stretch < SHA1_STRETCHES; stretch++)
        if (message->blocks[stretch])
            sha1_blocks(message->state, message->at[stretch], message->blocks[stretch]);
}

/* The first stretch in which something is left; SHA1_STRETCHES: none. */
static inline int sha1_stretch_of(const struct sha1_message *message) {
    int stretch = 0;
    while (stretch < SHA1_STRETCHES && !message->blocks[stretch])
        stretch++;
    return stretch;
}

static inline void sha1_take_state(struct sha1_message *message, sha1_states states, int lane) {
    for (int index = 0; index < 5; index++)
        message->state[index] = states[index][lane];
}

/* At most SHA1_LANES of them, for as long as enough of them have blocks left; the others are left with what they lack. */
static inline void sha1_together(struct sha1_message *messages, int count) {
    sha1_states states;
    const uint8_t *at[SHA1_LANES];
    int stretches[SHA1_LANES];
    for (int lane = 0; lane < SHA1_LANES; lane++)
        for (int index = 0; index < 5; index++)
            states[index][lane] = messages[lane < count ? lane : 0].state[index];
    for (;;) {
        int unfinished = 0, one = 0;
        size_t blocks = SIZE_MAX;
        for (int lane = 0; lane < count; lane++) {
            int stretch = stretches[lane] = sha1_stretch_of(&messages[lane]);
            if (stretch == SHA1_STRETCHES)
                continue;
            at[lane] = messages[lane].at[stretch];
            if (messages[lane].blocks[stretch] < blocks)
                blocks = messages[lane].blocks[stretch];
            unfinished++;
            one = lane;
        }
        if (unfinished < SHA1_FEWEST_TOGETHER)
            return;
        for (int lane = 0; lane < SHA1_LANES; lane++) /* whatever it is: nobody looks at what comes of it */
            if (lane >= count || stretches[lane] == SHA1_STRETCHES)
                at[lane] = at[one];
        sha1_lanes(states, at, blocks, count);
        for (int lane = 0; lane < count; lane++) {
            if (stretches[lane] == SHA1_STRETCHES)
                continue;
            messages[lane].at[stretches[lane]] = at[lane];
            messages[lane].blocks[stretches[lane]] -= blocks;
            sha1_take_state(&messages[lane], states, lane);
        }
    }
}

/* At most SHA1_LANES of them. */
static inline void sha1_messages(struct sha1_message *messages, int count) {
    if (sha1_lanes != NULL && count >= SHA1_FEWEST_TOGETHER)
        sha1_together(messages, count);
    for (int number = 0; number < count; number++)
        sha1_alone(&messages[number]);
}

#endif
