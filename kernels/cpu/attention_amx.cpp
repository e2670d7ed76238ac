// Attention of many bf16 rows by AMX. Keys are taken some at a time, packed as the tiles want them, and seen by all rows of
// the task before the next; a row's running sum, weight and greatest score are float.
#include <algorithm>
#include <cmath>

#include "attention_amx_pack.h"
#include "tiles.h"
#define WIDTH 16
#include "vec.h"

namespace {

// 32 rows of q times keys [j, j + 32) of those packed. HALVES: of 16 rows, 1 or 2.
template <int HALVES>
void multiply_keys(const bf16* q, int j, const Memory& m, const Shape& s, float* scores) {
    const bf16* k = m.k + j / 16 * s.steps() * 512;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < s.steps(); step++) {
        _tile_loadd(6, k + step * 512, 64);
        _tile_loadd(7, k + (s.steps() + step) * 512, 64);
        _tile_loadd(4, q + step * 32, s.wide * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (HALVES == 1) continue;
        _tile_loadd(5, q + 16 * s.wide + step * 32, s.wide * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, scores + j, KEYS * 4);
    _tile_stored(1, scores + j + 16, KEYS * 4);
    if (HALVES == 1) return;
    _tile_stored(2, scores + 16 * KEYS + j, KEYS * 4);
    _tile_stored(3, scores + 16 * KEYS + j + 16, KEYS * 4);
}

// Rows of weights times the first `keys` values, added to the rows' sums.
template <int HALVES>
void add_values(float* sums, int keys, const Memory& m, const Shape& s) {
    for (int step = 0; step < s.steps(); step++) {
        float* out = sums + step * 32;
        _tile_loadd(0, out, s.wide * 4);
        _tile_loadd(1, out + 16, s.wide * 4);
        if (HALVES == 2) {
            _tile_loadd(2, out + 16 * s.wide, s.wide * 4);
            _tile_loadd(3, out + 16 * s.wide + 16, s.wide * 4);
        }
        for (int j = 0; j < keys; j += 32) {
            const bf16* v = m.v + (j / 32 * s.steps() + step) * 1024;
            _tile_loadd(6, v, 64);
            _tile_loadd(7, v + 512, 64);
            _tile_loadd(4, m.weights + j, KEYS * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (HALVES == 1) continue;
            _tile_loadd(5, m.weights + 16 * KEYS + j, KEYS * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out, s.wide * 4);
        _tile_stored(1, out + 16, s.wide * 4);
        if (HALVES == 1) continue;
        _tile_stored(2, out + 16 * s.wide, s.wide * 4);
        _tile_stored(3, out + 16 * s.wide + 16, s.wide * 4);
    }
}

// 2^x for x at most 0 to a relative error of 1e-4, a hundredth of what rounding to bf16 costs.
inline __m512 exp2_short(__m512 x) {
    const __m512 round = _mm512_set1_ps(0x1.8p23f);
    x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
    __m512 shifted = _mm512_add_ps(x, round), f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, round));
    __m512 y = _mm512_fmadd_ps(f, _mm512_set1_ps(0.05517162f), _mm512_set1_ps(0.24261112f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.69326099f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.99992807f));
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

// Scores times the scale, capped.
void cap_scores(const Attention& a, float* scores, int keys) {
    float inner = a.scale / a.cap;
    for (int j = 0; j < keys; j += 16) store(scores + j, a.cap * tanhv(load(scores + j) * inner));
}

float greatest_score(const float* scores, int keys) {
    __m512 found[2] = {_mm512_load_ps(scores), _mm512_load_ps(scores + 16)};
    for (int j = 32; j < keys; j += 32) {
        found[0] = _mm512_max_ps(found[0], _mm512_load_ps(scores + j));
        found[1] = _mm512_max_ps(found[1], _mm512_load_ps(scores + j + 16));
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(found[0], found[1]));
}

// Weights 2^(score * factor - base) of a row; their sum.
float weigh(const float* scores, int keys, float factor, float base, bf16* weights) {
    __m512 scale = _mm512_set1_ps(factor), shift = _mm512_set1_ps(base), total[2] = {};
    for (int j = 0; j < keys; j += 32) {
        __m512 x = exp2_short(_mm512_fmsub_ps(_mm512_load_ps(scores + j), scale, shift));
        __m512 y = exp2_short(_mm512_fmsub_ps(_mm512_load_ps(scores + j + 16), scale, shift));
        total[0] = _mm512_add_ps(total[0], x);
        total[1] = _mm512_add_ps(total[1], y);
        _mm512_store_si512(weights + j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]));
}

// Scores of `count` rows from `row` on and keys [first, first + keys) become weights, and the rows' states relative to their
// new greatest scores. meanwhile(): called now and then, work for the tile units.
template <class Meanwhile>
void soften(const Attention& a, const Memory& m, const Shape& s, int row, int count, int first, int keys, float* rows,
            Meanwhile&& meanwhile) {
    alignas(64) float base[PART], kept[PART] = {};
    float factor = a.cap ? LOG2_E : a.scale * LOG2_E;
    for (int r = 0; r < count; r++) {
        float* scores = rows + r * KEYS;
        int low = m.low[row + r] - first, high = m.high[row + r] - first;
        if (a.cap) cap_scores(a, scores, keys);
        if (low > 0) std::fill(scores, scores + std::min(low, keys), -INFINITY);
        if (high < keys) std::fill(scores + std::max(high, 0), scores + keys, -INFINITY);
        float top = std::max(m.top[row + r], greatest_score(scores, keys) * factor);
        // A row that has seen nothing yet gets weights near 0, and loses them with its first key.
        base[r] = top == -INFINITY ? 0.0f : top;
        kept[r] = m.top[row + r] - base[r];
        m.top[row + r] = top;
    }
    for (int r = 0; r < count; r += 16) store(kept + r, exp2v(load(kept + r)));
    for (int r = 0; r < count; r++) {
        if (r % 8 == 0) meanwhile();
        float total = weigh(rows + r * KEYS, keys, factor, base[r], m.weights + r * KEYS);
        m.weight[row + r] = m.weight[row + r] * kept[r] + total;
        if (kept[r] == 1.0f) continue;
        float* sums = m.sums + long(row + r) * s.wide;
        for (int d = 0; d < s.wide; d += 16) store(sums + d, load(sums + d) * kept[r]);
    }
}

void take_rows(const Attention& a, const Batch& batch, const Task& task, const Shape& s, const Memory& m) {
    int group = a.group();
    for (int r = 0; r < s.padded(); r++) {
        // Rows that pad a part are the last one again.
        int row = std::min(r, s.rows - 1), token = task.first + row / group, head = task.head * group + row % group;
        const bf16* q = static_cast<const bf16*>(a.q) + token * a.q_stride + head * a.head_dim;
        for (int d = 0; d < s.wide; d += 32) _mm512_store_si512(m.q + long(r) * s.wide + d, channels(q, d, s.dim));
        int position = batch.lengths[task.seq] - (batch.starts[task.seq + 1] - token);
        m.low[r] = std::max(task.low, first_seen(a, position));
        m.high[r] = std::min(task.high, position + 1);
        m.weight[r] = 0;
        m.top[r] = -INFINITY;
    }
    std::fill(m.sums, m.sums + long(s.padded()) * s.wide, 0.0f);
}

void give_rows(const Attention& a, const Task& task, const Shape& s, const Memory& m) {
    int group = a.group();
    for (int r = 0; r < s.rows; r++) {
        int token = task.first + r / group, head = task.head * group + r % group;
        bf16* out = static_cast<bf16*>(a.out) + token * a.out_stride + head * a.head_dim;
        const float* sums = m.sums + long(r) * s.wide;
        float factor = 1.0f / m.weight[r];
        int d = 0;
        for (; d + 16 <= s.dim; d += 16) store(out + d, load(sums + d) * factor);
        for (; d < s.dim; d++) narrow(sums[d] * factor, out + d);
    }
}

void keep_states(const Attention& a, const Shape& s, const Memory& m, float* states) {
    for (int r = 0; r < s.rows; r++, states += state_size(a)) {
        std::copy_n(m.sums + long(r) * s.wide, s.dim, states);
        states[s.dim] = m.weight[r];
        states[s.dim + 1] = m.top[r];
    }
}

// All rows see the keys that are packed. While one part's scores become weights, the tile units work out the next part's.
void see(const Attention& a, const Task& task, const Shape& s, int first, const Memory& m) {
    int keys = std::min(KEYS, (task.high - first + 31) / 32 * 32);
    auto count_of = [&](int row) { return std::min(PART, s.rows - row); };
    auto next_part = [&](int row) {
        while (row < s.rows && (m.high[row + count_of(row) - 1] <= first || m.low[row] >= first + KEYS)) row += PART;
        return row;
    };
    auto multiply = [&](int row, int j, float* scores) {
        const bf16* q = m.q + long(row) * s.wide;
        if (count_of(row) <= 16) multiply_keys<1>(q, j, m, s, scores);
        else multiply_keys<2>(q, j, m, s, scores);
    };
    int row = next_part(0), turn = 0;
    for (int j = 0; j < keys && row < s.rows; j += 32) multiply(row, j, m.scores[0]);
    while (row < s.rows) {
        int next = next_part(row + PART), count = count_of(row), j = next < s.rows ? 0 : keys;
        auto meanwhile = [&] {
            if (j < keys) multiply(next, j, m.scores[1 - turn]);
            j += 32;
        };
        soften(a, m, s, row, count, first, keys, m.scores[turn], meanwhile);
        while (j < keys) meanwhile();
        float* sums = m.sums + long(row) * s.wide;
        if (count <= 16) add_values<1>(sums, keys, m, s);
        else add_values<2>(sums, keys, m, s);
        row = next, turn = 1 - turn;
    }
}

}  // namespace

void attend_amx(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch) {
    Shape s{(task.last - task.first) * a.group(), a.head_dim, (a.head_dim + 31) / 32 * 32};
    Memory m = lay_out(s, scratch);
    TileScope tiles;
    take_rows(a, batch, task, s, m);
    for (int first = task.low / KEYS * KEYS; first < task.high; first += KEYS) {
        pack(a, batch, task, s, first, std::min(KEYS, (task.high - first + 31) / 32 * 32), m);
        see(a, task, s, first, m);
    }
    if (task.state < 0) give_rows(a, task, s, m);
    else keep_states(a, s, m, states + task.state * state_size(a));
}
