#include "grouped.h"

#include <algorithm>
#include <immintrin.h>

namespace {

constexpr int GROUP = 32;

// Quants of a file's group as they are kept, without a sign.
void read_quants(const uint8_t* group, int form, uint8_t* out) {
    const uint8_t* quants = group + file_bytes(form) - (form == Q8_0 ? GROUP : GROUP / 2);
    for (int i = 0; i < GROUP; i++) {
        if (form == Q8_0) out[i] = quants[i] ^ 0x80;
        else out[i] = i < 16 ? quants[i] & 15 : quants[i - 16] >> 4;
    }
}

// One step of a panel. groups: of each column, null: none.
void pack_step(const uint8_t* const* groups, int form, uint8_t* to) {
    uint8_t quants[PANEL][GROUP] = {};
    uint8_t* scales = to + quant_bytes(form);
    std::fill(scales, to + step_bytes(form), 0);
    for (int c = 0; c < PANEL; c++) {
        if (groups[c] == nullptr) continue;
        read_quants(groups[c], form, quants[c]);
        memcpy(scales + c * 2, groups[c], 2);
        if (form == Q4_1) memcpy(scales + PANEL * 2 + c * 2, groups[c] + 2, 2);
    }
    for (int i = 0; i < GROUP; i++)
        for (int c = 0; c < 16; c++) {
            uint8_t left = quants[c][i], right = quants[c + 16][i];
            int at = c * 4 + i % 4;
            if (form != Q8_0) {
                to[i / 4 * 64 + at] = left | right << 4;
                continue;
            }
            to[i / 4 * 128 + at] = left;
            to[i / 4 * 128 + 64 + at] = right;
        }
}

// Values of 16 columns and one input, of which quants have the bits from `shift` on. Rounded after the product and after the
// sum, as the formats' reference does it.
template <int FORM>
__m512 values(__m512i quants, int shift, __m512 scale, __m512 least) {
    if constexpr (FORM == Q8_0) {
        __m512i q = _mm512_srai_epi32(_mm512_slli_epi32(quants, 24 - shift), 24);
        return _mm512_mul_ps(_mm512_cvtepi32_ps(q), scale);
    }
    constexpr float FIRST = FORM == Q4_0 ? -8 : 0;
    __m512 by_quant = _mm512_set_ps(FIRST + 15, FIRST + 14, FIRST + 13, FIRST + 12, FIRST + 11, FIRST + 10, FIRST + 9,
                                    FIRST + 8, FIRST + 7, FIRST + 6, FIRST + 5, FIRST + 4, FIRST + 3, FIRST + 2, FIRST + 1,
                                    FIRST);
    // Of an index the last four bits count.
    __m512 y = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(quants, shift), by_quant), scale);
    return FORM == Q4_1 ? _mm512_add_ps(y, least) : y;
}

__m512 halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

template <int FORM>
void unpack_steps(const uint8_t* w, int steps, bf16* out) {
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int s = 0; s < steps; s++, w += step_bytes(FORM), out += STEP * PANEL)
        for (int half = 0; half < 2; half++) {
            const uint8_t* factors = w + quant_bytes(FORM) + half * 32;
            __m512 scale = halves(factors), least = FORM == Q4_1 ? halves(factors + 64) : scale;
            for (int four = 0; four < 8; four++) {
                __m512i q = FORM == Q8_0 ? _mm512_xor_si512(_mm512_loadu_si512(w + four * 128 + half * 64),
                                                            _mm512_set1_epi8(char(0x80)))
                                         : _mm512_srli_epi32(_mm512_loadu_si512(w + four * 64), half * 4);
                for (int pair = 0; pair < 2; pair++) {
                    __m512 first = values<FORM>(q, pair * 16, scale, least);
                    __m512 second = values<FORM>(q, pair * 16 + 8, scale, least);
                    __m512i both = _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(second, first));
                    _mm512_storeu_si512(out + half * 512 + (four * 2 + pair) * 32, both);
                }
            }
        }
}

}  // namespace

void pack_groups(const uint8_t* from, const int32_t* row_of, int n, int k, int form, uint8_t* to, Worker& worker) {
    int steps = k / GROUP, panels = (n + PANEL - 1) / PANEL;
    long row_bytes = long(steps) * file_bytes(form);
    for (int panel = worker.id; panel < panels; panel += worker.count)
        for (int s = 0; s < steps; s++) {
            const uint8_t* groups[PANEL];
            for (int c = 0; c < PANEL; c++) {
                int row = row_of[panel * PANEL + c];
                groups[c] = row < 0 ? nullptr : from + row * row_bytes + s * file_bytes(form);
            }
            pack_step(groups, form, to + (long(panel) * steps + s) * step_bytes(form));
        }
}

void unpack_row(const Weight& w, long row, float* out) {
    int column = row % PANEL, half = column / 16;
    const uint8_t* from = panel_of(w, row / PANEL);
    for (int s = 0; s < w.steps(); s++, from += step_bytes(w.form)) {
        const uint8_t* factors = from + quant_bytes(w.form) + column * 2;
        f16 scale, least{0};
        memcpy(&scale, factors, 2);
        if (w.form == Q4_1) memcpy(&least, factors + PANEL * 2, 2);
        for (int i = 0; i < GROUP; i++) {
            int at = column % 16 * 4 + i % 4;
            int q = w.form == Q8_0 ? from[i / 4 * 128 + half * 64 + at] - 128 : from[i / 4 * 64 + at] >> half * 4 & 15;
            if (w.form == Q4_0) q -= 8;
            out[s * GROUP + i] = q * widen(scale) + widen(least);
        }
    }
}

void unpack_panel(const Weight& w, int panel, bf16* out) {
    const uint8_t* from = panel_of(w, panel);
    switch (w.form) {
        case Q4_0: return unpack_steps<Q4_0>(from, w.steps(), out);
        case Q4_1: return unpack_steps<Q4_1>(from, w.steps(), out);
        default: return unpack_steps<Q8_0>(from, w.steps(), out);
    }
}
