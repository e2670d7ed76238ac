// The element types of pools and activations, and their way to float and back.
#pragma once
#include <cstdint>
#include <cstring>

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

inline float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

inline float widen(float x) { return x; }

inline float widen(bf16 x) { return as_float(uint32_t(x.bits) << 16); }

inline float widen(f16 x) {
    uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    // Moving the exponent by a product also makes denormals right.
    float size = rest < 0x7c00 ? as_float(rest << 13) * 0x1p112f : as_float(0x7f800000 | rest << 13);
    return as_float(as_bits(size) | sign);
}

inline void narrow(float x, float* out) { *out = x; }

// To nearest, ties to even; NaN stays NaN.
inline void narrow(float x, bf16* out) {
    uint32_t bits = as_bits(x);
    out->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void narrow(float x, f16* out) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x47800000) {  // 65536 and more, infinity, NaN
        out->bits = sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00);
    } else if (size < 0x38800000) {  // denormal: let a sum round to its step
        out->bits = sign | uint16_t(as_bits(as_float(size) + 0.5f) - as_bits(0.5f));
    } else {
        out->bits = sign | uint16_t((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
    }
}
