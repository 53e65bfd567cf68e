"""Numbers as Java writes them: the most significant byte first."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for machines that store the least significant byte first"
    #endif
    static inline void store32(unsigned char *at, uint32_t value) { value = __builtin_bswap32(value); memcpy(at, &value, 4); }
    static inline void store64(unsigned char *at, uint64_t value) { value = __builtin_bswap64(value); memcpy(at, &value, 8); }
    static inline uint32_t load32(const unsigned char *at) { uint32_t value; memcpy(&value, at, 4); return __builtin_bswap32(value); }
    static inline int64_t load64(const unsigned char *at) { uint64_t value; memcpy(&value, at, 8); return (int64_t)__builtin_bswap64(value); }
    """
    void store32(uint8_t *at, uint32_t value) noexcept nogil
    void store64(uint8_t *at, uint64_t value) noexcept nogil
    uint32_t load32(const uint8_t *at) noexcept nogil
    int64_t load64(const uint8_t *at) noexcept nogil
