#define WIDTH 16
#include "decoder.h"

#include <algorithm>
#include <cmath>

#include "grouped.h"
#include "vec.h"

namespace {

int up(int n, int step) { return (n + step - 1) / step * step; }

// A width for rows of n that tiles are loaded from: an odd number of cache lines, so that rows do not crowd a few sets.
int spread(int n) { return (up(n, STEP) / STEP | 1) * STEP; }

void multiply(const Product& p, Forms forms, Workspace& space, Worker& worker) {
    if (p.weight.form != DENSE) multiply_grouped(p, forms, space.scratch[worker.id], worker);
    else
#ifdef HAVE_AMX
    if (forms.matrix == 2) multiply_amx(p, worker);
    else
#endif
        multiply_avx512(p, worker);
    worker.wait();
}

// Rows in turn to each thread.
template <class Body>
void each_row(int rows, Worker& worker, Body&& body) {
    for (int row = worker.id; row < rows; row += worker.count) body(row);
    worker.wait();
}

// out[i] = x[i] * weight[i] over the root mean square of x.
template <class In, class Out>
void norm(const In* x, const float* weight, int n, float eps, Out* out) {
    vf squares = {};
    float rest = 0;
    int i = 0;
    for (; i + WIDTH <= n; i += WIDTH) squares += load(x + i) * load(x + i);
    for (int j = i; j < n; j++) rest += widen(x[j]) * widen(x[j]);
    float factor = 1.0f / sqrtf((sum(squares) + rest) / n + eps);
    for (i = 0; i + WIDTH <= n; i += WIDTH) store(out + i, load(x + i) * factor * load(weight + i));
    for (; i < n; i++) narrow(widen(x[i]) * factor * weight[i], out + i);
}

// Turns a head's channels i and i + dim / 2 by the position's angle.
void turn_head(bf16* x, const Rope& rope, long position) {
    int half = rope.dim / 2, i = 0;
    const float *cos = rope.cos + position * half, *sin = rope.sin + position * half;
    for (; i + WIDTH <= half; i += WIDTH) {
        vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = widen(x[i]), b = widen(x[half + i]);
        narrow(a * cos[i] - b * sin[i], x + i);
        narrow(b * cos[i] + a * sin[i], x + half + i);
    }
}

// The weight's row, which is a token's embedding, from its panel.
void packed_row(const Weight& w, long row, float* out) {
    if (w.form != DENSE) return unpack_row(w, row, out);
    const bf16* from = w.panel(row / PANEL) + row % PANEL / 16 * 512 + row % 16 * 2;
    for (int i = 0; i < w.k; i++) out[i] = widen(from[i / STEP * STEP * PANEL + i % STEP / 2 * 32 + i % 2]);
}

struct Pass {
    const Decoder& model;
    const Batch& batch;
    Forms forms;
    Workspace& space;
    int rows, singles;
    int hidden, attended, inner;  // the widths that products want
    float *x, *wide;
    bf16 *normed, *qkv, *attention, *gated;

    Pass(const Decoder& m, const Batch& b, Forms f, Workspace& s) : model(m), batch(b), forms(f), space(s) {
        // A product may begin behind the few rows that are multiplied otherwise.
        rows = up(b.num_tokens, ROWS) + FEW_ROWS;
        singles = 0;
        while (singles < b.num_seqs && b.starts[singles + 1] == singles + 1) singles++;
        hidden = spread(m.hidden), attended = spread(m.q_heads * m.head_dim), inner = spread(m.inner);
        x = get<float>(s.x, m.hidden), wide = get<float>(s.wide, m.hidden);
        normed = get<bf16>(s.normed, hidden), qkv = get<bf16>(s.qkv, qkv_width());
        attention = get<bf16>(s.attended, attended), gated = get<bf16>(s.inner, inner);
    }

    int qkv_width() const { return (model.q_heads + 2 * model.kv_heads) * model.head_dim; }

    // Zeroed where it grows, so what pads rows is 0 until it is used, and finite for ever.
    template <class T>
    T* get(Scratch& memory, int width) {
        return reinterpret_cast<T*>(memory.get(sizeof(T) * rows * width));
    }

    void embed(const int64_t* ids, Worker& worker) {
        each_row(batch.num_tokens, worker, [&](int row) {
            float* out = x + long(row) * model.hidden;
            if (model.table.packed) packed_row(model.table, ids[row], out);
            else
                for (int i = 0; i < model.hidden; i++) out[i] = widen(model.embedding[ids[row] * model.hidden + i]);
            if (model.embedding_scale != 1.0f)
                for (int i = 0; i < model.hidden; i++) out[i] *= model.embedding_scale;
        });
    }

    void norm_rows(const float* weight, Worker& worker) {
        each_row(batch.num_tokens, worker, [&](int row) {
            bf16* out = normed + long(row) * hidden;
            norm(x + long(row) * model.hidden, weight, model.hidden, model.eps, out);
            std::fill(out + model.hidden, out + hidden, bf16{0});
        });
    }

    void product(const bf16* input, int width, const Weight& weight, void* out, int out_width, Finish finish, Worker& worker) {
        multiply({input, width, batch.num_tokens, weight, out, out_width, finish, singles}, forms, space, worker);
    }

    // x += input times weight, normed before it is added if there is such a norm.
    void add_product(const bf16* input, int width, const Weight& weight, const float* post_norm, Worker& worker) {
        float* out = post_norm ? wide : x;
        product(input, width, weight, out, model.hidden, post_norm ? WIDE : ADD, worker);
        if (post_norm == nullptr) return;
        each_row(batch.num_tokens, worker, [&](int row) {
            float *y = wide + long(row) * model.hidden, *to = x + long(row) * model.hidden;
            norm(y, post_norm, model.hidden, model.eps, y);
            for (int i = 0; i < model.hidden; i++) to[i] += y[i];
        });
    }

    // Norms and turns Q and K, and puts K and V into their slots.
    void store_kv(const Layer& layer, Worker& worker) {
        int dim = model.head_dim, turned = model.q_heads + model.kv_heads;
        each_row(batch.num_tokens, worker, [&](int row) {
            bf16* heads = qkv + long(row) * qkv_width();
            long slot = batch.slots[row], page = slot / batch.page_size, offset = slot % batch.page_size;
            for (int h = 0; h < turned; h++) {
                const float* weight = h < model.q_heads ? layer.q_norm : layer.k_norm;
                if (weight) norm(heads + h * dim, weight, dim, model.eps, heads + h * dim);
                turn_head(heads + h * dim, layer.rope, batch.positions[row]);
            }
            for (int h = 0; h < model.kv_heads; h++) {
                long to = ((page * model.kv_heads + h) * batch.page_size + offset) * dim;
                memcpy(static_cast<bf16*>(layer.k) + to, heads + (model.q_heads + h) * dim, dim * sizeof(bf16));
                memcpy(static_cast<bf16*>(layer.v) + to, heads + (turned + h) * dim, dim * sizeof(bf16));
            }
        });
    }

    Attention attention_of(const Layer& layer) const {
        Attention a{};
        a.kind = BFLOAT16;
        a.q_heads = model.q_heads, a.kv_heads = model.kv_heads, a.head_dim = model.head_dim;
        a.window = layer.window, a.scale = model.scale, a.cap = model.cap;
        a.q = qkv, a.q_stride = qkv_width(), a.k = layer.k, a.v = layer.v;
        a.out = attention, a.out_stride = attended;
        return a;
    }

    void layer(const Layer& layer, const Plan& plan, float* states, Worker& worker) {
        norm_rows(layer.attention_norm, worker);
        product(normed, hidden, layer.qkv, qkv, qkv_width(), STORE, worker);
        store_kv(layer, worker);
        attend(attention_of(layer), batch, plan, forms, states, space.scratch, worker);
        add_product(attention, attended, layer.out, layer.attention_post_norm, worker);
        norm_rows(layer.mlp_norm, worker);
        product(normed, hidden, layer.gate_up, gated, inner, Finish(model.gate), worker);
        add_product(gated, inner, layer.down, layer.mlp_post_norm, worker);
    }
};

// y: `[rows][PANEL]`, of which `count` columns from `column` on are there.
template <Finish FINISH, class Out>
void finish_columns(const Product& p, const float* y, int first_row, int num_rows, int column, int count) {
    constexpr bool ADDS = FINISH == ADD;
    vf bias[2] = {};
    if (p.weight.bias) bias[0] = load(p.weight.bias + column), bias[1] = load(p.weight.bias + column + WIDTH);
    Out* out = static_cast<Out*>(p.out) + first_row * p.out_stride + column;
    for (int r = 0; r < num_rows; r++, y += PANEL, out += p.out_stride) {
        vf left = load(y) + bias[0], right = load(y + WIDTH) + bias[1];
        if (count == PANEL) {
            if constexpr (ADDS) left += load(out), right += load(out + WIDTH);
            store(out, left);
            store(out + WIDTH, right);
            continue;
        }
        for (int i = 0; i < count; i++) {
            float value = i < WIDTH ? left[i] : right[i - WIDTH];
            narrow(ADDS ? widen(out[i]) + value : value, out + i);
        }
    }
}

// The same for a panel of gates and ups.
template <Finish FINISH>
void finish_gates(const Product& p, const float* y, int first_row, int num_rows, int panel) {
    int column = panel * 16, count = std::min(16, p.weight.n / 2 - column);
    vf gate_bias = {}, up_bias = {};
    if (p.weight.bias) gate_bias = load(p.weight.bias + panel * PANEL), up_bias = load(p.weight.bias + panel * PANEL + 16);
    bf16* out = static_cast<bf16*>(p.out) + first_row * p.out_stride + column;
    for (int r = 0; r < num_rows; r++, y += PANEL, out += p.out_stride) {
        vf gate = load(y) + gate_bias, up = load(y + 16) + up_bias, inside = gate;
        if constexpr (FINISH == GELU) inside = 1.5957691216f * (gate + 0.044715f * gate * gate * gate);
        vf value = gate * sigmoid(inside) * up;
        if (count == 16) store(out, value);
        else
            for (int i = 0; i < count; i++) narrow(value[i], out + i);
    }
}

}  // namespace

void finish_tile(const Product& p, const float* y, int first_row, int num_rows, int panel) {
    int column = panel * PANEL, count = std::min(PANEL, p.weight.n - column);
    switch (p.finish) {
        case STORE: return finish_columns<STORE, bf16>(p, y, first_row, num_rows, column, count);
        case WIDE: return finish_columns<WIDE, float>(p, y, first_row, num_rows, column, count);
        case ADD: return finish_columns<ADD, float>(p, y, first_row, num_rows, column, count);
        case SILU: return finish_gates<SILU>(p, y, first_row, num_rows, panel);
        case GELU: return finish_gates<GELU>(p, y, first_row, num_rows, panel);
    }
}

void decode(const Decoder& model, const Batch& batch, const int64_t* ids, bf16* out, const Team& team, Forms forms,
            Workspace& space) {
    Pass pass(model, batch, forms, space);
    // Layers of one window have the same plan.
    std::vector<int> windows;
    std::vector<Plan> plans;
    long num_states = 0;
    for (int i = 0; i < model.num_layers; i++) {
        const Layer& layer = model.layers[i];
        if (std::find(windows.begin(), windows.end(), layer.window) != windows.end()) continue;
        windows.push_back(layer.window);
        plans.push_back(plan_attention(pass.attention_of(layer), batch, team.size));
        num_states = std::max(num_states, plans.back().num_states);
    }
    float* states = space.prepare(pass.attention_of(model.layers[0]), num_states, team.size);
    run(team, [&](Worker& worker) {
        pass.embed(ids, worker);
        for (int i = 0; i < model.num_layers; i++) {
            const Layer& layer = model.layers[i];
            long kind = std::find(windows.begin(), windows.end(), layer.window) - windows.begin();
            pass.layer(layer, plans[kind], states, worker);
        }
        each_row(batch.num_tokens, worker, [&](int row) {
            norm(pass.x + long(row) * model.hidden, model.last_norm, model.hidden, model.eps, out + long(row) * model.hidden);
        });
    });
}

void head_logits(const Decoder& model, const bf16* hidden, int rows, float* out, const Team& team, Forms forms,
                 Workspace& space) {
    int width = spread(model.hidden);
    bf16* x = reinterpret_cast<bf16*>(space.normed.get(sizeof(bf16) * up(rows, ROWS) * width));
    for (int row = 0; row < rows; row++) {
        memcpy(x + long(row) * width, hidden + long(row) * model.hidden, model.hidden * sizeof(bf16));
        std::fill(x + long(row) * width + model.hidden, x + long(row + 1) * width, bf16{0});
    }
    space.prepare(team.size);
    run(team, [&](Worker& worker) {
        multiply({x, width, rows, model.head, out, model.head.n, WIDE}, forms, space, worker);
    });
}
