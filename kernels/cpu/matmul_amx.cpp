// Products by AMX: tiles of 16 rows and 16 columns, 32 inputs a step. A row's sum is taken in the same order whatever
// rows stand beside it, so its result does not depend on the batch.
#include <algorithm>
#include <immintrin.h>

#include "matmul.h"
#include "tiles.h"

namespace {

constexpr int AHEAD = 4;  // steps, 8 KB

// Asks for a step's part of a panel.
inline void ask_step(const bf16* w) {
    for (int line = 0; line < 32; line++) _mm_prefetch((const char*)(w + line * 32), _MM_HINT_T0);
}

// 32 rows times a panel, left in tiles 0 to 3. FIRST: nobody has read the panel yet.
template <bool FIRST>
void tile_32(const bf16* x, long stride, const bf16* w, int steps) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < steps; s++, x += STEP, w += STEP * PANEL) {
        if (FIRST) ask_step(w + AHEAD * STEP * PANEL);
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x, stride * 2);
        _tile_loadd(7, w + 512, 64);
        _tile_loadd(5, x + 16 * stride, stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

void store_32(float* y) {
    _tile_stored(0, y, PANEL * 4);
    _tile_stored(1, y + 16, PANEL * 4);
    _tile_stored(2, y + 16 * PANEL, PANEL * 4);
    _tile_stored(3, y + 16 * PANEL + 16, PANEL * 4);
}

// 16 rows and a panel: bound by reading the weights, so these are asked for ahead, up to the first of the panel that this
// thread has next. What lies behind the panel is another thread's.
void tile_16(const bf16* x, long stride, const bf16* w, const bf16* next, int steps, float* y) {
    _tile_zero(0);
    _tile_zero(1);
    for (int s = 0; s < steps; s++, x += STEP, w += STEP * PANEL) {
        const bf16* ahead = s + AHEAD < steps ? w + AHEAD * STEP * PANEL : next + (s + AHEAD - steps) * STEP * PANEL;
        ask_step(ahead);
        _tile_loadd(4, x, stride * 2);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + 512, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, y, PANEL * 4);
    _tile_stored(1, y + 16, PANEL * 4);
}

// How the product of many rows is cut into tasks: pieces whose rows and panels stay in a core's second cache, and enough of
// them for all threads.
struct Cut {
    int panels = 8, rows = 512;

    Cut(const Product& p, int threads) {
        while (tasks(p) < 3 * threads && rows > ROWS) rows > 128 || panels == 2 ? rows /= 2 : panels /= 2;
    }
    int across(const Product& p) const { return (p.weight.panels() + panels - 1) / panels; }
    int down(const Product& p) const { return (p.rows + rows - 1) / rows; }
    int tasks(const Product& p) const { return across(p) * down(p); }
};

void multiply_piece(const Product& p, const Cut& cut, int task) {
    alignas(64) float y[ROWS * PANEL];
    int first = task % cut.across(p) * cut.panels, top = task / cut.across(p) * cut.rows;
    int end = std::min(first + cut.panels, p.weight.panels()), bottom = std::min(top + cut.rows, p.rows);
    int last_row = -1, last_panel = -1;
    // What one tile becomes is worked out while the tile units have the next.
    auto finish_last = [&] {
        if (last_row >= 0) finish_tile(p, y, last_row, std::min(ROWS, bottom - last_row), last_panel);
    };
    for (int row = top; row < bottom; row += ROWS)
        for (int panel = first; panel < end; panel++) {
            (row == top ? tile_32<true> : tile_32<false>)(p.x + row * p.x_stride, p.x_stride, p.weight.panel(panel), p.weight.steps());
            finish_last();
            store_32(y);
            last_row = row, last_panel = panel;
        }
    finish_last();
}

}  // namespace

void multiply_amx(const Product& p, Worker& worker) {
    TileScope tiles;
    int task;
    if (p.rows > 16) {
        Cut cut(p, worker.count);
        while (worker.take(cut.tasks(p), &task)) multiply_piece(p, cut, task);
        return;
    }
    alignas(64) float y[16 * PANEL];
    bool more = worker.take(p.weight.panels(), &task);
    while (more) {
        int panel = task;
        more = worker.take(p.weight.panels(), &task);
        tile_16(p.x, p.x_stride, p.weight.panel(panel), p.weight.panel(task), p.weight.steps(), y);
        finish_tile(p, y, 0, p.rows, panel);
    }
}
