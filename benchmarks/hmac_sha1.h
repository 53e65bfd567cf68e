/* HMAC-SHA1 in base64, as signed requests carry it. For the load generator alone: it wants no library. */
#include <stdint.h>
#include <string.h>

struct sha1 { uint32_t h[5]; uint64_t size; unsigned char block[64]; unsigned used; };
static uint32_t rotated(uint32_t v, int bits) { return v << bits | v >> (32 - bits); }
static void sha1_block(struct sha1 *s, const unsigned char *p) {
    uint32_t w[80], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 80; i++) w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
        uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t t = rotated(a, 5) + f + e + k + w[i];
        e = d; d = c; c = rotated(b, 30); b = a; a = t;
    }
    s->h[0] += a; s->h[1] += b; s->h[2] += c; s->h[3] += d; s->h[4] += e;
}
static void sha1_start(struct sha1 *s) {
    static const uint32_t first[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    memcpy(s->h, first, sizeof first); s->size = 0; s->used = 0;
}
static void sha1_add(struct sha1 *s, const void *data, size_t n) {
    const unsigned char *p = data; s->size += n;
    while (n) {
        if (!s->used && n >= 64) { sha1_block(s, p); p += 64; n -= 64; continue; }
        size_t part = 64 - s->used < n ? 64 - s->used : n;
        memcpy(s->block + s->used, p, part); s->used += part; p += part; n -= part;
        if (s->used == 64) { sha1_block(s, s->block); s->used = 0; }
    }
}
static void sha1_end(struct sha1 *s, unsigned char *digest) {
    uint64_t bits = s->size * 8; unsigned char tail[72] = {0x80};
    unsigned pad = (s->used < 56 ? 56 : 120) - s->used;
    for (int i = 0; i < 8; i++) tail[pad + i] = bits >> (56 - 8 * i);
    sha1_add(s, tail, pad + 8);
    for (int i = 0; i < 20; i++) digest[i] = s->h[i / 4] >> (24 - 8 * (i % 4));
}
/* `text` has to hold 29 characters; `a` and `b` are hashed one behind the other. */
static void hmac_sha1_base64(const char *key, const void *a, size_t an, const void *b, size_t bn, char *text) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char block[64] = {0}, digest[21]; struct sha1 s;
    memcpy(block, key, strlen(key)); /* shorter than a block */
    for (int i = 0; i < 64; i++) block[i] ^= 0x36;
    sha1_start(&s); sha1_add(&s, block, 64); sha1_add(&s, a, an); sha1_add(&s, b, bn); sha1_end(&s, digest);
    for (int i = 0; i < 64; i++) block[i] ^= 0x36 ^ 0x5c;
    sha1_start(&s); sha1_add(&s, block, 64); sha1_add(&s, digest, 20); sha1_end(&s, digest);
    digest[20] = 0;
    for (int i = 0; i < 7; i++) {
        uint32_t v = digest[3 * i] << 16 | digest[3 * i + 1] << 8 | digest[3 * i + 2];
        for (int j = 0; j < 4; j++) text[4 * i + j] = letters[v >> (18 - 6 * j) & 63];
    }
    text[27] = '='; text[28] = 0;
}
