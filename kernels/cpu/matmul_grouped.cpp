// Products with grouped weights. Few rows: their groups of 32 inputs become whole numbers of 15 bits with a scale, and products
// with quants are sums of whole numbers, exact in any order, so a row's result does not depend on the others. Many rows: panels are
// unpacked to bf16 and multiplied as such.
#include <algorithm>
#include <immintrin.h>

#include "grouped.h"

namespace {

constexpr int AHEAD = 8192;         // bytes
constexpr int HALF = 128;           // an input is high * HALF + low
constexpr int FOURS = STEP / 4;     // in a group, of inputs that are multiplied by one instruction
constexpr long UNPACKED = 768 * 1024;  // bytes of panels that stay in a core's second cache

// Rows of activations, each in groups: inputs of four together are the bytes of an int.
struct Rows {
    int steps;
    int32_t* fours;  // [rows][steps][2][FOURS], high before low
    int32_t* sums;   // [rows][steps] of inputs
    float* scales;   // [rows][steps]

    Rows(const Product& p, int rows, char* memory) : steps(p.weight.steps()) {
        long groups = long(rows) * steps;
        fours = reinterpret_cast<int32_t*>(memory);
        sums = fours + groups * 2 * FOURS;
        scales = reinterpret_cast<float*>(sums + groups);
        for (long g = 0; g < groups; g++) round_group(p.x + g / steps * p.x_stride + g % steps * STEP, g);
    }
    static size_t bytes(int rows, int steps) { return size_t(rows) * steps * (2 * FOURS + 2) * 4; }

private:
    void round_group(const bf16* x, long g) {
        auto wide = [](const bf16* p) {
            __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
            return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
        };
        __m512 a = wide(x), b = wide(x + 16);
        float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        constexpr float MOST = 127 * HALF, LEAST = 1e-30f;  // below it the factor would overflow
        __m512 factor = _mm512_set1_ps(largest > LEAST ? MOST / largest : 0);
        __m512i left = _mm512_cvtps_epi32(_mm512_mul_ps(a, factor)), right = _mm512_cvtps_epi32(_mm512_mul_ps(b, factor));
        sums[g] = _mm512_reduce_add_epi32(_mm512_add_epi32(left, right));
        scales[g] = largest / MOST;
        split(left, fours + g * 2 * FOURS);
        split(right, fours + g * 2 * FOURS + FOURS / 2);
    }

    // 16 inputs to their bytes.
    static void split(__m512i x, int32_t* to) {
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(HALF / 2)), 7);
        __m512i low = _mm512_sub_epi32(x, _mm512_slli_epi32(high, 7));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + FOURS), _mm512_cvtepi32_epi8(low));
    }
};

__m512 halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

// Quants of four inputs and 16 columns, or of the other 16.
template <int FORM>
__m512i quants(const uint8_t* w, int four, int half) {
    if constexpr (FORM == Q8_0) return _mm512_loadu_si512(w + four * 128 + half * 64);
    __m512i both = _mm512_loadu_si512(w + four * 64);
    return _mm512_and_si512(half ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
}

// y: `[R][PANEL]`.
template <int FORM, int R>
void rows_by_panel(const Rows& x, int row, const uint8_t* w, float* y) {
    constexpr int FIRST = FORM == Q8_0 ? 128 : FORM == Q4_0 ? 8 : 0;  // the quant of 0
    __m512 total[R][2] = {};
    long group = long(row) * x.steps;
    for (int s = 0; s < x.steps; s++, w += step_bytes(FORM), group++) {
        for (int line = 0; line < step_bytes(FORM); line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(w + AHEAD + line), _MM_HINT_T0);
        __m512i high[R][2] = {}, low[R][2] = {};
#pragma GCC unroll 8
        for (int four = 0; four < FOURS; four++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                __m512i q = quants<FORM>(w, four, half);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    const int32_t* inputs = x.fours + (group + long(r) * x.steps) * 2 * FOURS + four;
                    high[r][half] = _mm512_dpbusd_epi32(high[r][half], q, _mm512_set1_epi32(inputs[0]));
                    low[r][half] = _mm512_dpbusd_epi32(low[r][half], q, _mm512_set1_epi32(inputs[FOURS]));
                }
            }
        const uint8_t* factors = w + quant_bytes(FORM);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m512 scale = halves(factors + half * 32);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                long at = group + long(r) * x.steps;
                __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[r][half], 7), low[r][half]);
                if constexpr (FIRST) sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(FIRST * x.sums[at]));
                __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[at]));
                total[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, total[r][half]);
                if constexpr (FORM == Q4_1) {
                    __m512 inputs = _mm512_set1_ps(x.sums[at] * x.scales[at]);
                    total[r][half] = _mm512_fmadd_ps(halves(factors + 64 + half * 32), inputs, total[r][half]);
                }
            }
        }
    }
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(y + r * PANEL, total[r][0]);
        _mm512_storeu_ps(y + r * PANEL + 16, total[r][1]);
    }
}

template <int FORM>
void few_by_panel(const Rows& x, int rows, const uint8_t* w, float* y) {
    int row = 0;
    for (; row + 4 <= rows; row += 4) rows_by_panel<FORM, 4>(x, row, w, y + row * PANEL);
    if (row + 2 <= rows) rows_by_panel<FORM, 2>(x, row, w, y + row * PANEL), row += 2;
    if (row < rows) rows_by_panel<FORM, 1>(x, row, w, y + row * PANEL);
}

void multiply_few(const Product& p, const Rows& x, int rows, int panel) {
    alignas(64) float y[FEW_ROWS * PANEL];
    const uint8_t* w = panel_of(p.weight, panel);
    if (p.weight.form == Q4_0) few_by_panel<Q4_0>(x, rows, w, y);
    else if (p.weight.form == Q4_1) few_by_panel<Q4_1>(x, rows, w, y);
    else few_by_panel<Q8_0>(x, rows, w, y);
    finish_tile(p, y, 0, rows, panel);
}

// The product of rows from `row` on and panels first to end, which `unpacked` has.
Product part_of(const Product& p, int row, int first, int end, const bf16* unpacked) {
    bool gates = p.finish == SILU || p.finish == GELU;
    size_t size = p.finish == WIDE || p.finish == ADD ? sizeof(float) : sizeof(bf16);
    Product part = p;
    part.x += row * p.x_stride;
    part.rows -= row;
    part.out = static_cast<char*>(p.out) + (row * p.out_stride + first * (gates ? PANEL / 2 : PANEL)) * size;
    part.weight.packed = unpacked;
    part.weight.form = DENSE;
    part.weight.n = std::min(p.weight.n - first * PANEL, (end - first) * PANEL);
    if (p.weight.bias) part.weight.bias += first * PANEL;
    return part;
}

void multiply_alone(const Product& p, Forms forms) {
    Shared shared;
    Worker alone{&shared, 0, 1};
#ifdef HAVE_AMX
    if (forms.matrix == 2) return multiply_amx(p, alone);
#endif
    multiply_avx512(p, alone);
}

// How many panels are unpacked at a time: what the cache holds, and enough tasks for all threads.
int panels_together(const Product& p, int threads) {
    long held = UNPACKED / (long(p.weight.steps()) * STEP * PANEL * sizeof(bf16));
    int shared = p.weight.panels() / (3 * threads);
    return std::clamp<long>(held, 1, std::clamp(shared, 1, 8));
}

}  // namespace

void multiply_grouped(const Product& p, Forms forms, Scratch& scratch, Worker& worker) {
    int few = p.rows <= FEW_ROWS ? p.rows : p.singles <= FEW_ROWS ? p.singles : 0, panels = p.weight.panels(), task;
    int steps = p.weight.steps(), together = few == p.rows ? 1 : panels_together(p, worker.count);
    size_t unpacked = few == p.rows ? 0 : size_t(together) * steps * STEP * PANEL * sizeof(bf16);
    char* memory = scratch.get(unpacked + Rows::bytes(few, steps));
    Rows x(p, few, memory + unpacked);
    bf16* dense = reinterpret_cast<bf16*>(memory);
    while (worker.take((panels + together - 1) / together, &task)) {
        int first = task * together, end = std::min(first + together, panels);
        for (int panel = first; few && panel < end; panel++) multiply_few(p, x, few, panel);
        if (few == p.rows) continue;
        for (int panel = first; panel < end; panel++)
            unpack_panel(p.weight, panel, dense + long(panel - first) * steps * STEP * PANEL);
        multiply_alone(part_of(p, few, first, end, dense), forms);
    }
}
