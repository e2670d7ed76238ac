// Vectors of floats by the compiler's own vector types: one source for AVX-512 (WIDTH 16), AVX2 (8) and anything else (4).
// In an unnamed namespace, since each form compiles its own.
#pragma once
#include "number.h"
#if WIDTH == 16
#include <immintrin.h>
#endif

#ifndef WIDTH
#define WIDTH 4
#endif

namespace {

typedef float vf __attribute__((vector_size(WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t vu __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t vh __attribute__((vector_size(WIDTH * 2)));

inline vf all(float x) { return x - vf{}; }

inline vf select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

#if WIDTH == 16
// The compiler sees these instructions in a select only where NaN need not be kept.
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#else
inline vf max(vf a, vf b) { return select(a > b, a, b); }
inline vf min(vf a, vf b) { return select(a < b, a, b); }
#endif

inline vf load(const float* p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

inline vu load_bits(const void* p) {
    vh x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vu);
}

inline vf load(const bf16* p) { return (vf)(load_bits(p) << 16); }

inline vf load(const f16* p) {
    vu x = load_bits(p), sign = (x & 0x8000) << 16, rest = (x & 0x7fff) << 13;
    vf size = select((vi)rest < 0x7c00 << 13, (vf)rest * 0x1p112f, (vf)(rest | 0x7f800000));
    return (vf)((vu)size | sign);
}

inline void store(float* p, vf x) { memcpy(p, &x, sizeof x); }

#ifdef __AVX512BF16__
inline void store(bf16* p, vf x) {
    __m256bh out = _mm512_cvtneps_pbh((__m512)x);
    memcpy(p, &out, sizeof out);
}
#else
inline void store(bf16* p, vf x) {
    vu bits = (vu)x;
    vh out = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, vh);
    memcpy(p, &out, sizeof out);
}
#endif

inline void store(f16* p, vf x) {
    for (int i = 0; i < WIDTH; i++) narrow(x[i], p + i);
}

#if WIDTH == 16
inline float sum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
inline float greatest(vf x) { return _mm512_reduce_max_ps((__m512)x); }
#else
inline float sum(vf x) {
    float parts[WIDTH];
    memcpy(parts, &x, sizeof x);
    for (int half = WIDTH / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

inline float greatest(vf x) {
    float found = x[0];
    for (int i = 1; i < WIDTH; i++) found = x[i] > found ? x[i] : found;
    return found;
}
#endif

// 2^x to a relative error of 3e-7; x is taken as -126 below that and as 126 above.
inline vf exp2v(vf x) {
    x = min(max(x, all(-126.0f)), all(126.0f));
    // Added to a float this leaves its nearest integer in the last bits.
    constexpr float ROUND = 0x1.8p23f;
    vf shifted = x + ROUND, f = x - (shifted - ROUND);
    vf y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    return (vf)((vi)y + ((vi)shifted << 23));
}

constexpr float LOG2_E = 1.44269504f;

#if WIDTH == 16
// One step of Newton's method on the processor's 14 bits; a division takes as long as all the rest.
inline vf inverse(vf x) {
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y * (2.0f - x * y);
}
#else
inline vf inverse(vf x) { return 1.0f / x; }
#endif

inline vf sigmoid(vf x) { return inverse(1.0f + exp2v(x * -LOG2_E)); }

inline vf tanhv(vf x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

}  // namespace
