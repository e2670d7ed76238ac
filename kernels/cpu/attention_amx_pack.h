// What a task of attention by AMX works on: its memory, and its keys and values packed as the tiles want them.
#pragma once
#include <algorithm>
#include <immintrin.h>

#include "attention.h"

namespace {

constexpr int KEYS = 256;  // keys of a step
constexpr int PART = 32;   // rows that are worked on at a time
constexpr int AHEAD = 32;  // keys that are fetched ahead

struct Memory {
    bf16 *q, *k, *v, *weights;
    float *scores[2], *sums, *weight, *top;
    int *low, *high;
};

struct Shape {
    int rows, dim, wide;  // wide: dim up to a multiple of 32
    int padded() const { return (rows + PART - 1) / PART * PART; }
    int steps() const { return wide / 32; }
};

Memory lay_out(const Shape& s, Scratch& scratch) {
    size_t rows = s.padded(), half = sizeof(bf16), full = sizeof(float);
    size_t sizes[] = {rows * s.wide * half, KEYS * s.wide * half, KEYS * s.wide * half, PART * KEYS * half,
                      2 * PART * KEYS * full, rows * s.wide * full, rows * full * 4};
    size_t total = 0;
    for (size_t size : sizes) total += (size + 63) / 64 * 64;
    char* at = scratch.get(total);
    auto next = [&, i = 0]() mutable {
        char* found = at;
        at += (sizes[i++] + 63) / 64 * 64;
        return found;
    };
    Memory m;
    m.q = reinterpret_cast<bf16*>(next());
    m.k = reinterpret_cast<bf16*>(next());
    m.v = reinterpret_cast<bf16*>(next());
    m.weights = reinterpret_cast<bf16*>(next());
    m.scores[0] = reinterpret_cast<float*>(next());
    m.scores[1] = m.scores[0] + PART * KEYS;
    m.sums = reinterpret_cast<float*>(next());
    m.weight = reinterpret_cast<float*>(next());
    m.top = m.weight + rows;
    m.low = reinterpret_cast<int*>(m.top + rows);
    m.high = m.low + rows;
    return m;
}

// Channels [d, d + 32) of a row; zeros past its end, or where there is no row.
inline __m512i channels(const bf16* row, int d, int dim) {
    int left = dim - d;
    __mmask32 there = row == nullptr ? 0 : left >= 32 ? ~0u : (1u << left) - 1;
    return _mm512_maskz_loadu_epi16(there, row + d);
}

// Begins to fetch a row: pages lie anywhere, so the processor cannot guess where the next one is.
inline void ask(const bf16* row, int dim) {
    if (row == nullptr) return;
    for (int d = 0; d < dim; d += 32) _mm_prefetch((const char*)(row + d), _MM_HINT_T0);
}

// Turns a square of 16 x 16 pairs: lines[i] pair j becomes lines[j] pair i.
inline void turn(__m512i* x) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    }
}

// Keys [first, first + KEYS) into k: [16 keys][step of 32 channels][16 pairs][16 keys][2], and
// v: [32 keys][16 channels][16 pairs of keys][16 channels][2]. Only keys that the task sees are read; the others are zeros.
void pack(const Attention& a, const Batch& batch, const Task& task, const Shape& s, int first, int keys, const Memory& m) {
    const int32_t* pages = batch.page_table + task.seq * batch.table_stride;
    const bf16 *k[KEYS], *v[KEYS];
    int low = std::clamp(task.low - first, 0, keys), high = std::clamp(task.high - first, 0, keys);
    std::fill(k, k + low, nullptr);
    std::fill(v, v + low, nullptr);
    for (int j = low, page = (first + low) / batch.page_size, offset = (first + low) % batch.page_size; j < high; page++) {
        long row = (long(pages[page]) * a.kv_heads + task.head) * batch.page_size;
        for (; offset < batch.page_size && j < high; offset++, j++) {
            k[j] = static_cast<const bf16*>(a.k) + (row + offset) * a.head_dim;
            v[j] = static_cast<const bf16*>(a.v) + (row + offset) * a.head_dim;
        }
        offset = 0;
    }
    std::fill(k + high, k + keys, nullptr);
    std::fill(v + high, v + keys, nullptr);
    for (int j = 0; j < keys; j += 16) {
        for (int i = 0; i < 16; i++) {
            ask(j + AHEAD + i < high ? k[j + AHEAD + i] : nullptr, s.dim);
            ask(v[j + i], s.dim);
        }
        for (int step = 0; step < s.steps(); step++) {
            __m512i lines[16];
            for (int i = 0; i < 16; i++) lines[i] = channels(k[j + i], step * 32, s.dim);
            turn(lines);
            bf16* out = m.k + (j / 16 * s.steps() + step) * 512;
            for (int i = 0; i < 16; i++) _mm512_store_si512(out + i * 32, lines[i]);
        }
    }
    alignas(64) uint16_t order[2][32];
    for (int i = 0; i < 32; i++)
        for (int half = 0; half < 2; half++) order[half][i] = half * 16 + i / 2 + (i % 2) * 32;
    __m512i left = _mm512_load_si512(order[0]), right = _mm512_load_si512(order[1]);
    for (int j = 0; j < keys; j += 2)
        for (int step = 0; step < s.steps(); step++) {
            __m512i x = channels(v[j], step * 32, s.dim), y = channels(v[j + 1], step * 32, s.dim);
            bf16* out = m.v + (j / 32 * s.steps() + step) * 1024 + j % 32 / 2 * 32;
            _mm512_store_si512(out, _mm512_permutex2var_epi16(x, left, y));
            _mm512_store_si512(out + 512, _mm512_permutex2var_epi16(x, right, y));
        }
}

}  // namespace
