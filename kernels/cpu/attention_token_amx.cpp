// Attention of one bf16 token by AMX. Keys are the rows of a tile as they lie in the pool, and the token's query heads its
// columns, so nothing is turned but the queries: a decoding token reads each key and value once and has little else to do.
// Scores stand key by key, a query head in each lane.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "attention_amx_pack.h"
#include "tiles.h"
#define WIDTH 16
#include "vec.h"

namespace {

constexpr int HEADS = 16;  // query heads of a task at most
constexpr int TILE = 16;   // keys of a tile

// Memory of a task of `keys` keys, of whole tiles, and `steps` times 32 channels.
struct Room {
    bf16* q;        // [steps][16 pairs of channels][16 heads][2]
    float* scores;  // [keys][16 heads]
    float* sums;    // [16 heads][steps * 32]

    Room(int keys, int steps, Scratch& scratch) {
        size_t queries = sizeof(bf16) * steps * 512, table = sizeof(float) * keys * HEADS;
        char* at = scratch.get(queries + table + sizeof(float) * HEADS * steps * 32);
        q = reinterpret_cast<bf16*>(at);
        scores = reinterpret_cast<float*>(at + queries);
        sums = reinterpret_cast<float*>(at + queries + table);
    }
};

// Where keys or values from `key` on lie, up to the end of their page.
struct Pages {
    const int32_t* table;
    int kv_heads, head, page_size, dim;

    const bf16* row(const void* pool, int key) const {
        long row = (long(table[key / page_size]) * kv_heads + head) * page_size + key % page_size;
        return static_cast<const bf16*>(pool) + row * dim;
    }
};

void pack_queries(const bf16* q, int heads, int dim, bf16* out) {
    for (int d = 0; d < dim; d += 32, out += 512) {
        __m512i lines[16];
        for (int r = 0; r < HEADS; r++) lines[r] = channels(r < heads ? q + r * dim : nullptr, d, dim);
        turn(lines);
        for (int i = 0; i < 16; i++) _mm512_store_si512(out + i * 32, lines[i]);
    }
}

void ask_rows(const bf16* rows, int dim) {
    for (int i = 0; i < TILE; i++) ask(rows + long(i) * dim, dim);
}

// Scores of all keys of whole tiles [begin, end), those of keys that are not seen included.
void multiply_keys(const Attention& a, const Pages& pages, int begin, int end, const bf16* q, float* scores) {
    ask_rows(pages.row(a.k, begin), pages.dim);
    for (int key = begin; key < end; key += TILE, scores += TILE * HEADS) {
        const bf16* k = pages.row(a.k, key);
        if (key + TILE < end) ask_rows(pages.row(a.k, key + TILE), pages.dim);
        ask_rows(pages.row(a.v, key), pages.dim);
        _tile_zero(0);
        for (int d = 0; d < pages.dim; d += 32) {
            _tile_loadd(1, k + d, pages.dim * 2);
            _tile_loadd(2, q + d * 16, 64);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, scores, HEADS * 4);
    }
}

// Scores become weights 2^(score - top), in place; each head's top and sum of weights.
void weigh(const Attention& a, float* scores, int keys, float* weight, float* top) {
    vf scale = all(a.cap ? LOG2_E : a.scale * LOG2_E), found = all(-INFINITY), total = {};
    if (a.cap)
        for (int j = 0; j < keys; j++)
            store(scores + j * HEADS, a.cap * tanhv(load(scores + j * HEADS) * (a.scale / a.cap)));
    for (int j = 0; j < keys; j++) found = max(found, load(scores + j * HEADS));
    found *= scale;
    for (int j = 0; j < keys; j++) {
        vf p = exp2v(load(scores + j * HEADS) * scale - found);
        store(scores + j * HEADS, p);
        total += p;
    }
    store(weight, total);
    store(top, found);
}

// Of ROWS heads and VECTORS times 16 channels, the sums of weights times values [begin, end).
template <int ROWS, int VECTORS>
void add_values(const Attention& a, const Pages& pages, int begin, int end, int channel, const float* weights, float* sums,
                int width) {
    vf total[ROWS][VECTORS] = {};
    for (int key = begin; key < end;) {
        const bf16* v = pages.row(a.v, key) + channel;
        for (int stop = std::min(end, (key / pages.page_size + 1) * pages.page_size); key < stop; key++) {
            for (int n = 0; n < VECTORS; n++) {
                vf x = load(v + n * 16);
                for (int r = 0; r < ROWS; r++) total[r][n] += weights[r] * x;
            }
            v += pages.dim, weights += HEADS;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < VECTORS; n++) store(sums + r * width + channel + n * 16, total[r][n]);
}

template <int ROWS>
void add_channels(const Attention& a, const Pages& pages, int begin, int end, const float* weights, float* sums) {
    int channel = 0;
    for (; channel + 64 <= pages.dim; channel += 64)
        add_values<ROWS, 4>(a, pages, begin, end, channel, weights, sums, pages.dim);
    if (channel < pages.dim) add_values<ROWS, 2>(a, pages, begin, end, channel, weights, sums, pages.dim);
}

}  // namespace

bool takes_token_amx(const Attention& a, const Batch& batch, const Task& task) {
    return task.last - task.first == 1 && a.group() <= HEADS && a.head_dim % 32 == 0 && batch.page_size % TILE == 0;
}

void attend_token_amx(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch) {
    int heads = a.group(), dim = a.head_dim;
    int begin = task.low / TILE * TILE, end = (task.high + TILE - 1) / TILE * TILE;
    Room room(end - begin, dim / 32, scratch);
    Pages pages{batch.page_table + task.seq * batch.table_stride, a.kv_heads, task.head, batch.page_size, dim};
    const bf16* q = static_cast<const bf16*>(a.q) + task.first * a.q_stride + task.head * heads * dim;
    pack_queries(q, heads, dim, room.q);
    {
        TileScope tiles;
        multiply_keys(a, pages, begin, end, room.q, room.scores);
    }
    alignas(64) float weight[HEADS], top[HEADS];
    float* scores = room.scores + (task.low - begin) * HEADS;
    weigh(a, scores, task.high - task.low, weight, top);
    int r = 0;
    for (; r + 4 <= heads; r += 4) add_channels<4>(a, pages, task.low, task.high, scores + r, room.sums + r * dim);
    switch (heads - r) {
        case 3: add_channels<3>(a, pages, task.low, task.high, scores + r, room.sums + r * dim); break;
        case 2: add_channels<2>(a, pages, task.low, task.high, scores + r, room.sums + r * dim); break;
        case 1: add_channels<1>(a, pages, task.low, task.high, scores + r, room.sums + r * dim); break;
    }
    bf16* out = static_cast<bf16*>(a.out) + task.first * a.out_stride + task.head * heads * dim;
    float* state = states + task.state * state_size(a);
    for (r = 0; r < heads; r++, out += dim, state += state_size(a)) {
        const float* sums = room.sums + r * dim;
        if (task.state < 0) {
            for (int d = 0; d < dim; d += 16) store(out + d, load(sums + d) * (1.0f / weight[r]));
            continue;
        }
        std::copy_n(sums, dim, state);
        state[dim] = weight[r];
        state[dim + 1] = top[r];
    }
}
