/* CRC-32 by carry-less multiplication, where the processor has it: sixteen bytes a step, and four steps at a time.
 *
 * A polynomial over GF(2) is folded: x^n mod P is known for the distances by which parts are moved, so 512 bits move over the next 512
 * without being divided; what is left at the end is divided once (Barrett). Bits are reflected throughout, as CRC-32 has them. After
 * Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
 */
#ifndef ORBITMQ_CRC32_H
#define ORBITMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

#define CRC32_LEAST_BYTES 64 /* that it is made for; and in wholes of CRC32_STEP_BYTES */
#define CRC32_STEP_BYTES 16

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define CRC32_HAS_INSTRUCTIONS 1

static inline int crc32_has_instructions(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

#define CRC32_TARGET __attribute__((target("pclmul,sse4.1")))

/* The part, moved over the next one. */
CRC32_TARGET static inline __m128i crc32_folded(__m128i part, __m128i distance, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(part, distance, 0x00), high = _mm_clmulepi64_si128(part, distance, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Behind what has come to `value`, which is not inverted. */
CRC32_TARGET static uint32_t crc32_by_instruction(uint32_t value, const uint8_t *data, size_t length) {
    const __m128i over_64_bytes = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i over_16_bytes = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i over_8_bytes = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i divisor = _mm_set_epi64x(0x01f7011641, 0x01db710641); /* its inverse, and the polynomial */
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i *next = (const __m128i *)data;
    __m128i parts[4], whole, rest;
    for (int number = 0; number < 4; number++)
        parts[number] = _mm_loadu_si128(next + number);
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128((int)value));
    next += 4;
    length -= 64;
    while (length >= 64) {
        for (int number = 0; number < 4; number++)
            parts[number] = crc32_folded(parts[number], over_64_bytes, _mm_loadu_si128(next + number));
        next += 4;
        length -= 64;
    }
    whole = parts[0];
    for (int number = 1; number < 4; number++)
        whole = crc32_folded(whole, over_16_bytes, parts[number]);
    while (length >= 16) {
        whole = crc32_folded(whole, over_16_bytes, _mm_loadu_si128(next));
        next += 1;
        length -= 16;
    }
    /* 128 bits to 64 */
    whole = _mm_xor_si128(_mm_srli_si128(whole, 8), _mm_clmulepi64_si128(whole, over_16_bytes, 0x10));
    rest = _mm_srli_si128(whole, 4);
    whole = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(whole, low_words), over_8_bytes, 0x00), rest);
    /* and to 32 */
    rest = _mm_clmulepi64_si128(_mm_and_si128(whole, low_words), divisor, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), divisor, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(whole, rest), 1);
}
#else
#define CRC32_HAS_INSTRUCTIONS 0
static inline int crc32_has_instructions(void) { return 0; }
static inline uint32_t crc32_by_instruction(uint32_t value, const uint8_t *data, size_t length) {
    (void)data;
    (void)length;
    return value;
}
#endif

#endif
