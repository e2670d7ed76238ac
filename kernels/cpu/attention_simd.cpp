// Attention by vectors, compiled once for each form: FORM is the function's name, WIDTH the floats of a vector.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "vec.h"

namespace {

constexpr int KEYS = 64;  // keys of a step
constexpr int MANY = 8;   // rows from which it pays to turn the keys
constexpr int MOST = 64;  // rows at a time

// Rows that see keys [low, high), and their states so far.
struct Rows {
    int count, head_dim;
    float* q;        // [count][head_dim], times scale if there is no cap
    int *low, *high;
    float* sums;     // [count][head_dim]
    float *weight, *top;
};

// out[r][c] += sum over i of a[r][i] * rows[i][c], for R rows and columns [0, width).
template <int R, class T>
void mix(const float* a, long a_stride, const T* const* rows, int count, int width, float* out, long out_stride) {
    constexpr int VECTORS = WIDTH == 16 ? 4 : 2;
    int c = 0;
    auto columns = [&]<int N>(std::integral_constant<int, N>) {
        vf total[R][N];
        for (int r = 0; r < R; r++)
            for (int n = 0; n < N; n++) total[r][n] = load(out + r * out_stride + c + n * WIDTH);
        for (int i = 0; i < count; i++)
            for (int n = 0; n < N; n++) {
                vf x = load(rows[i] + c + n * WIDTH);
                for (int r = 0; r < R; r++) total[r][n] += a[r * a_stride + i] * x;
            }
        for (int r = 0; r < R; r++)
            for (int n = 0; n < N; n++) store(out + r * out_stride + c + n * WIDTH, total[r][n]);
        c += N * WIDTH;
    };
    while (c + VECTORS * WIDTH <= width) columns(std::integral_constant<int, VECTORS>{});
    while (c + WIDTH <= width) columns(std::integral_constant<int, 1>{});
    for (; c < width; c++)
        for (int r = 0; r < R; r++)
            for (int i = 0; i < count; i++) out[r * out_stride + c] += a[r * a_stride + i] * widen(rows[i][c]);
}

template <class T>
void mix_all(int r, const float* a, long a_stride, const T* const* rows, int count, int width, float* out,
             long out_stride) {
    for (; r >= 4; r -= 4, a += 4 * a_stride, out += 4 * out_stride)
        mix<4>(a, a_stride, rows, count, width, out, out_stride);
    if (r == 3) mix<3>(a, a_stride, rows, count, width, out, out_stride);
    if (r == 2) mix<2>(a, a_stride, rows, count, width, out, out_stride);
    if (r == 1) mix<1>(a, a_stride, rows, count, width, out, out_stride);
}

// scores[r][j] of R rows, key by key.
template <int R, class T>
void dots(const float* q, int head_dim, const T* const* keys, int count, float* scores) {
    for (int j = 0; j < count; j++) {
        vf total[R] = {};
        int d = 0;
        for (; d + WIDTH <= head_dim; d += WIDTH) {
            vf x = load(keys[j] + d);
            for (int r = 0; r < R; r++) total[r] += load(q + r * head_dim + d) * x;
        }
        for (int r = 0; r < R; r++) {
            float rest = 0;
            for (int i = d; i < head_dim; i++) rest += q[r * head_dim + i] * widen(keys[j][i]);
            scores[r * KEYS + j] = sum(total[r]) + rest;
        }
    }
}

template <class T>
void scores_of(const Rows& rows, const T* const* keys, int count, float* turned, float* scores) {
    int dim = rows.head_dim;
    if (rows.count < MANY) {
        int r = 0;
        for (; r + 4 <= rows.count; r += 4) dots<4>(rows.q + r * dim, dim, keys, count, scores + r * KEYS);
        for (; r + 2 <= rows.count; r += 2) dots<2>(rows.q + r * dim, dim, keys, count, scores + r * KEYS);
        if (r < rows.count) dots<1>(rows.q + r * dim, dim, keys, count, scores + r * KEYS);
        return;
    }
    const float* lines[MAX_HEAD_DIM];
    for (int d = 0; d < dim; d++) lines[d] = turned + d * KEYS;
    for (int j = 0; j < count; j++)
        for (int d = 0; d < dim; d++) turned[d * KEYS + j] = widen(keys[j][d]);
    for (int d = 0; d < dim; d++) std::fill(turned + d * KEYS + count, turned + (d + 1) * KEYS, 0.0f);
    std::fill(scores, scores + rows.count * KEYS, 0.0f);
    mix_all(rows.count, rows.q, dim, lines, dim, KEYS, scores, KEYS);
}

// Scores of keys from `first` on become weights; the row's state is made relative to its new greatest score.
void soften(Rows& rows, int r, int first, int count, const Attention& a, float* scores) {
    if (a.cap) {
        float inner = a.scale / a.cap, outer = a.cap * LOG2_E;
        for (int j = 0; j < KEYS; j += WIDTH) store(scores + j, outer * tanhv(load(scores + j) * inner));
    }
    int low = std::clamp(rows.low[r] - first, 0, KEYS), high = std::clamp(rows.high[r] - first, 0, count);
    if (low >= high) {
        std::fill(scores, scores + KEYS, 0.0f);
        return;
    }
    std::fill(scores, scores + low, -INFINITY);
    std::fill(scores + high, scores + KEYS, -INFINITY);
    vf found = load(scores);
    for (int j = WIDTH; j < KEYS; j += WIDTH) found = max(found, load(scores + j));
    float top = std::max(rows.top[r], greatest(found)), kept = exp2f(rows.top[r] - top);
    vf total = {};
    for (int j = 0; j < KEYS; j += WIDTH) {
        vf p = exp2v(load(scores + j) - top);
        store(scores + j, p);
        total += p;
    }
    std::fill(scores, scores + low, 0.0f);
    std::fill(scores + high, scores + KEYS, 0.0f);
    rows.weight[r] = rows.weight[r] * kept + sum(total);
    rows.top[r] = top;
    if (kept == 1.0f) return;
    float* sums = rows.sums + long(r) * rows.head_dim;
    for (int d = 0; d < rows.head_dim; d++) sums[d] *= kept;
}

template <class T>
void see(Rows& rows, int low, int high, const Attention& a, const Batch& batch, const Task& task, float* scores,
         float* turned) {
    const int32_t* pages = batch.page_table + task.seq * batch.table_stride;
    const T *k[KEYS], *v[KEYS];
    for (int first = low; first < high; first += KEYS) {
        int count = std::min(KEYS, high - first);
        for (int j = 0; j < count; j++) {
            int at = first + j;
            long row = (long(pages[at / batch.page_size]) * a.kv_heads + task.head) * batch.page_size;
            row += at % batch.page_size;
            k[j] = static_cast<const T*>(a.k) + row * a.head_dim;
            v[j] = static_cast<const T*>(a.v) + row * a.head_dim;
        }
        scores_of(rows, k, count, turned, scores);
        for (int r = 0; r < rows.count; r++) soften(rows, r, first, count, a, scores + r * KEYS);
        mix_all(rows.count, scores, KEYS, v, count, a.head_dim, rows.sums, a.head_dim);
    }
}

// Rows [from, from + count) of the task, a row being a token and one of its group of query heads.
template <class T>
void take_rows(Rows& rows, const Attention& a, const Batch& batch, const Task& task, int from) {
    int group = a.group();
    float factor = a.cap ? 1.0f : a.scale * LOG2_E;
    for (int r = 0; r < rows.count; r++) {
        int token = task.first + (from + r) / group, head = task.head * group + (from + r) % group;
        const T* q = static_cast<const T*>(a.q) + token * a.q_stride + head * a.head_dim;
        for (int d = 0; d < a.head_dim; d++) rows.q[long(r) * a.head_dim + d] = widen(q[d]) * factor;
        int position = batch.lengths[task.seq] - (batch.starts[task.seq + 1] - token);
        rows.low[r] = std::max(task.low, first_seen(a, position));
        rows.high[r] = std::min(task.high, position + 1);
        rows.weight[r] = 0;
        rows.top[r] = -INFINITY;
    }
    std::fill(rows.sums, rows.sums + long(rows.count) * a.head_dim, 0.0f);
}

template <class T>
void give_rows(const Rows& rows, const Attention& a, const Task& task, int from) {
    int group = a.group();
    for (int r = 0; r < rows.count; r++) {
        int token = task.first + (from + r) / group, head = task.head * group + (from + r) % group;
        T* out = static_cast<T*>(a.out) + token * a.out_stride + head * a.head_dim;
        for (int d = 0; d < a.head_dim; d++) narrow(rows.sums[long(r) * a.head_dim + d] / rows.weight[r], out + d);
    }
}

void keep_states(const Rows& rows, const Attention& a, float* states) {
    for (int r = 0; r < rows.count; r++, states += state_size(a)) {
        std::copy_n(rows.sums + long(r) * a.head_dim, a.head_dim, states);
        states[a.head_dim] = rows.weight[r];
        states[a.head_dim + 1] = rows.top[r];
    }
}

template <class T>
void do_task(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch) {
    int total = (task.last - task.first) * a.group(), dim = a.head_dim;
    float* memory = reinterpret_cast<float*>(scratch.get(sizeof(float) * (MOST * (2 * dim + KEYS) + dim * KEYS)));
    float weight[MOST], top[MOST];
    int low[MOST], high[MOST];
    // A split token's rows stay together: there is one state for each.
    for (int from = 0; from < total; from += MOST) {
        Rows rows{std::min(MOST, total - from), dim, memory, low, high, memory + MOST * dim, weight, top};
        float* scores = rows.sums + MOST * dim;
        take_rows<T>(rows, a, batch, task, from);
        see<T>(rows, *std::min_element(low, low + rows.count), *std::max_element(high, high + rows.count), a, batch,
               task, scores, scores + MOST * KEYS);
        if (task.state < 0) give_rows<T>(rows, a, task, from);
        else keep_states(rows, a, states + (task.state + from) * state_size(a));
    }
}

}  // namespace

void FORM(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch) {
    if (a.kind == FLOAT) do_task<float>(a, batch, task, states, scratch);
    else if (a.kind == BFLOAT16) do_task<bf16>(a, batch, task, states, scratch);
    else do_task<f16>(a, batch, task, states, scratch);
}
