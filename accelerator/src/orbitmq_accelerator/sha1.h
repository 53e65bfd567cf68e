/* SHA-1 of whole blocks, one behind the other: with the processor's own instructions where it has them.
 *
 * For signatures alone: HMAC-SHA1 is RocketMQ's.
 */
#ifndef ORBITMQ_SHA1_H
#define ORBITMQ_SHA1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SHA1_BLOCK_BYTES 64
#define SHA1_DIGEST_BYTES 20

static const uint32_t sha1_first_state[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};

#define SHA1_ROTATED(word, bits) ((word) << (bits) | (word) >> (32 - (bits)))

static inline uint32_t sha1_word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Twenty rounds, of numbers or of vectors of them; the last sixteen words of the schedule are enough for each. */
#define SHA1_TWENTY_ROUNDS(from, choice, constant)                                                               \
    _Pragma("GCC unroll 20") for (int round = (from); round < (from) + 20; round++) {                            \
        if (round >= 16) {                                                                                       \
            __typeof__(a) mixed =                                                                                \
                words[(round + 13) & 15] ^ words[(round + 8) & 15] ^ words[(round + 2) & 15] ^ words[round & 15]; \
            words[round & 15] = SHA1_ROTATED(mixed, 1);                                                          \
        }                                                                                                        \
        /* What the round before was about comes last: the rest need not wait for it. */                         \
        __typeof__(a) next = SHA1_ROTATED(a, 5) + ((choice) + (words[round & 15] + e + (constant)));             \
        e = d;                                                                                                   \
        d = c;                                                                                                   \
        c = SHA1_ROTATED(b, 30);                                                                                 \
        b = a;                                                                                                   \
        a = next;                                                                                                \
    }

#define SHA1_EIGHTY_ROUNDS                                        \
    SHA1_TWENTY_ROUNDS(0, d ^ (b & (c ^ d)), 0x5A827999u)         \
    SHA1_TWENTY_ROUNDS(20, b ^ c ^ d, 0x6ED9EBA1u)                \
    SHA1_TWENTY_ROUNDS(40, (b & c) | (d & (b | c)), 0x8F1BBCDCu)  \
    SHA1_TWENTY_ROUNDS(60, b ^ c ^ d, 0xCA62C1D6u)

static void sha1_blocks_portable(uint32_t *state, const uint8_t *data, size_t count) {
    for (; count; count--, data += SHA1_BLOCK_BYTES) {
        uint32_t words[16], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int index = 0; index < 16; index++)
            words[index] = sha1_word(data + 4 * index);
        SHA1_EIGHTY_ROUNDS
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
        state[4] += e;
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

#define SHA1_HAS_INSTRUCTIONS 1

/* Four rounds a step: `words[step & 3]` are those of four steps before, and become this step's. */
#define SHA1_FOUR_ROUNDS(step, kind)                                                                             \
    if ((step) >= 4)                                                                                             \
        words[(step) & 3] = _mm_sha1msg2_epu32(                                                                  \
            _mm_xor_si128(_mm_sha1msg1_epu32(words[(step) & 3], words[((step) + 1) & 3]), words[((step) + 2) & 3]), \
            words[((step) + 3) & 3]);                                                                            \
    e = (step) ? _mm_sha1nexte_epu32(before, words[(step) & 3]) : _mm_add_epi32(e, words[0]);                    \
    before = abcd;                                                                                               \
    abcd = _mm_sha1rnds4_epu32(abcd, e, kind);

#define SHA1_TWENTY_AT_ONCE(step, kind)                                                          \
    SHA1_FOUR_ROUNDS(step, kind) SHA1_FOUR_ROUNDS(step + 1, kind) SHA1_FOUR_ROUNDS(step + 2, kind) \
    SHA1_FOUR_ROUNDS(step + 3, kind) SHA1_FOUR_ROUNDS(step + 4, kind)

__attribute__((target("sha,sse4.1"))) static void sha1_blocks_by_instruction(
    uint32_t *state, const uint8_t *data, size_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0001020304050607LL, 0x08090A0B0C0D0E0FLL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count; count--, data += SHA1_BLOCK_BYTES) {
        const __m128i abcd_then = abcd, e_then = e;
        __m128i words[4], before;
        for (int index = 0; index < 4; index++)
            words[index] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * index)), big_endian);
        SHA1_TWENTY_AT_ONCE(0, 0)
        SHA1_TWENTY_AT_ONCE(5, 1)
        SHA1_TWENTY_AT_ONCE(10, 2)
        SHA1_TWENTY_AT_ONCE(15, 3)
        e = _mm_sha1nexte_epu32(before, e_then);
        abcd = _mm_add_epi32(abcd, abcd_then);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static inline int sha1_has_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
}
#else
#define SHA1_HAS_INSTRUCTIONS 0
static inline int sha1_has_instructions(void) { return 0; }
#endif

static void (*sha1_blocks)(uint32_t *state, const uint8_t *data, size_t count) = sha1_blocks_portable;

/* Once, before anything is hashed. Whether the processor's own instructions are used. */
static inline int sha1_choose(int allow_instructions) {
#if SHA1_HAS_INSTRUCTIONS
    if (allow_instructions && sha1_has_instructions()) {
        sha1_blocks = sha1_blocks_by_instruction;
        return 1;
    }
#endif
    sha1_blocks = sha1_blocks_portable;
    return 0;
}

#endif
