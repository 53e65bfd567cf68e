/* SHA-1 of whole blocks of up to sixteen messages at once, a lane of a vector for each.
 *
 * A round has to wait for the one before it, so that one message alone leaves most of the processor idle, even with its instructions for
 * SHA-1: 20 of 6 cycles for a block. Sixteen wait together: a quarter of the time for each with AVX-512, which has rotations as well.
 */
#ifndef ORBITMQ_SHA1_LANES_H
#define ORBITMQ_SHA1_LANES_H

#include "sha1.h"

#define SHA1_LANES 16

typedef uint32_t sha1_states[5][SHA1_LANES]; /* a word of every message, then the next word */

/* `at[lane]` is where a message goes on, and is moved behind what was hashed. Those from `lanes` on may be left out. NULL where the
 * processor has no such vectors. */
static void (*sha1_lanes)(sha1_states states, const uint8_t **at, size_t count, int lanes) = NULL;

#define SHA1_BY_AVX2 1
#define SHA1_BY_AVX512 2

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define SHA1_AVX2 __attribute__((target("avx2")))
#define SHA1_AVX512 __attribute__((target("avx2,avx512f,avx512bw")))

typedef uint32_t sha1_eight __attribute__((vector_size(32)));
typedef uint32_t sha1_sixteen __attribute__((vector_size(64)));

/* The words of each message one behind the other become a word of all messages, then the next: first in twos, then in fours. */
#define SHA1_TURN(bits, lanes)                                                            \
    _Pragma("GCC unroll 16") for (int lane = 0; lane < lanes; lane += 2) {                \
        pairs[lane] = _mm##bits##_unpacklo_epi32(rows[lane], rows[lane + 1]);             \
        pairs[lane + 1] = _mm##bits##_unpackhi_epi32(rows[lane], rows[lane + 1]);         \
    }                                                                                     \
    _Pragma("GCC unroll 16") for (int lane = 0; lane < lanes; lane += 4) {                \
        fours[lane] = _mm##bits##_unpacklo_epi64(pairs[lane], pairs[lane + 2]);           \
        fours[lane + 1] = _mm##bits##_unpackhi_epi64(pairs[lane], pairs[lane + 2]);       \
        fours[lane + 2] = _mm##bits##_unpacklo_epi64(pairs[lane + 1], pairs[lane + 3]);   \
        fours[lane + 3] = _mm##bits##_unpackhi_epi64(pairs[lane + 1], pairs[lane + 3]);   \
    }

/* Half a block of eight messages. */
SHA1_AVX2 static inline void sha1_turn_eight(const uint8_t **at, size_t from, sha1_eight *words) {
    const __m256i big_endian = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0C0D0E0F08090A0BLL, 0x0405060700010203LL));
    __m256i rows[8], pairs[8], fours[8];
    _Pragma("GCC unroll 16") for (int lane = 0; lane < 8; lane++)
        rows[lane] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(at[lane] + from)), big_endian);
    SHA1_TURN(256, 8)
    _Pragma("GCC unroll 16") for (int word = 0; word < 4; word++) {
        words[word] = (sha1_eight)_mm256_permute2x128_si256(fours[word], fours[word + 4], 0x20);
        words[word + 4] = (sha1_eight)_mm256_permute2x128_si256(fours[word], fours[word + 4], 0x31);
    }
}

/* A block of sixteen messages. */
SHA1_AVX512 static inline void sha1_turn_sixteen(const uint8_t **at, sha1_sixteen *words) {
    const __m512i big_endian = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0C0D0E0F08090A0BLL, 0x0405060700010203LL));
    __m512i rows[16], pairs[16], fours[16];
    _Pragma("GCC unroll 16") for (int lane = 0; lane < 16; lane++)
        rows[lane] = _mm512_shuffle_epi8(_mm512_loadu_si512(at[lane]), big_endian);
    SHA1_TURN(512, 16)
    _Pragma("GCC unroll 16") for (int word = 0; word < 4; word++) {
        __m512i low_even = _mm512_shuffle_i32x4(fours[word], fours[word + 4], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(fours[word], fours[word + 4], 0xDD);
        __m512i high_even = _mm512_shuffle_i32x4(fours[word + 8], fours[word + 12], 0x88);
        __m512i high_odd = _mm512_shuffle_i32x4(fours[word + 8], fours[word + 12], 0xDD);
        words[word] = (sha1_sixteen)_mm512_shuffle_i32x4(low_even, high_even, 0x88);
        words[word + 4] = (sha1_sixteen)_mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        words[word + 8] = (sha1_sixteen)_mm512_shuffle_i32x4(low_even, high_even, 0xDD);
        words[word + 12] = (sha1_sixteen)_mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
    }
}

#define SHA1_ADD_ROUNDS \
    SHA1_EIGHTY_ROUNDS  \
    state[0] += a;      \
    state[1] += b;      \
    state[2] += c;      \
    state[3] += d;      \
    state[4] += e;

SHA1_AVX2 static void sha1_lanes_by_avx2(sha1_states states, const uint8_t **at, size_t count, int lanes) {
    for (int first = 0; first < lanes; first += 8) {
        sha1_eight state[5], words[16];
        for (int index = 0; index < 5; index++)
            memcpy(&state[index], &states[index][first], sizeof state[index]);
        for (size_t block = 0; block < count; block++) {
            sha1_eight a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
            sha1_turn_eight(at + first, 0, words);
            sha1_turn_eight(at + first, SHA1_BLOCK_BYTES / 2, words + 8);
            for (int lane = first; lane < first + 8; lane++)
                at[lane] += SHA1_BLOCK_BYTES;
            SHA1_ADD_ROUNDS
        }
        for (int index = 0; index < 5; index++)
            memcpy(&states[index][first], &state[index], sizeof state[index]);
    }
}

SHA1_AVX512 static void sha1_lanes_by_avx512(sha1_states states, const uint8_t **at, size_t count, int lanes) {
    sha1_sixteen state[5], words[16];
    (void)lanes; /* it makes no difference */
    memcpy(state, states, sizeof state);
    for (; count; count--) {
        sha1_sixteen a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        sha1_turn_sixteen(at, words);
        for (int lane = 0; lane < SHA1_LANES; lane++)
            at[lane] += SHA1_BLOCK_BYTES;
        SHA1_ADD_ROUNDS
    }
    memcpy(states, state, sizeof state);
}

static inline int sha1_has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }
static inline int sha1_has_avx512(void) {
    return sha1_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}
#endif

/* The best of those that are allowed; which one it is, 0 for none. */
static inline int sha1_choose_lanes(int allowed) {
    sha1_lanes = NULL;
#if defined(__x86_64__) && defined(__GNUC__)
    if ((allowed & SHA1_BY_AVX512) && sha1_has_avx512()) {
        sha1_lanes = sha1_lanes_by_avx512;
        return SHA1_BY_AVX512;
    }
    if ((allowed & SHA1_BY_AVX2) && sha1_has_avx2()) {
        sha1_lanes = sha1_lanes_by_avx2;
        return SHA1_BY_AVX2;
    }
#else
    (void)allowed;
#endif
    return 0;
}

#endif
