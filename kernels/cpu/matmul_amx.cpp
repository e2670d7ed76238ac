// Products by AMX: tiles of 16 rows and 16 columns, 32 inputs a step. A row's sum is taken in the same order whatever
// rows stand beside it, so its result does not depend on the batch.
#include <algorithm>
#include <immintrin.h>

#include "matmul.h"
#include "tiles.h"

namespace {

constexpr int AHEAD = 4096;  // elements, 8 KB

// 32 rows and a panel.
void tile_32(const bf16* x, long stride, const bf16* w, int steps, float* y) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < steps; s++, x += STEP, w += STEP * PANEL) {
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x, stride * 2);
        _tile_loadd(7, w + 512, 64);
        _tile_loadd(5, x + 16 * stride, stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, PANEL * 4);
    _tile_stored(1, y + 16, PANEL * 4);
    _tile_stored(2, y + 16 * PANEL, PANEL * 4);
    _tile_stored(3, y + 16 * PANEL + 16, PANEL * 4);
}

// 16 rows and a panel: bound by reading the weights, so these are asked for ahead.
void tile_16(const bf16* x, long stride, const bf16* w, int steps, float* y) {
    _tile_zero(0);
    _tile_zero(1);
    for (int s = 0; s < steps; s++, x += STEP, w += STEP * PANEL) {
        for (int line = 0; line < 32; line++) _mm_prefetch((const char*)(w + AHEAD + line * 32), _MM_HINT_T0);
        _tile_loadd(4, x, stride * 2);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + 512, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, y, PANEL * 4);
    _tile_stored(1, y + 16, PANEL * 4);
}

}  // namespace

void multiply_amx(const Product& p, Worker& worker) {
    constexpr int GROUP_PANELS = 4, GROUP_ROWS = 256;
    TileScope tiles;
    alignas(64) float y[ROWS * PANEL];
    int steps = p.weight.steps(), panels = p.weight.panels(), task;
    if (p.rows <= 16) {
        while (worker.take(panels, &task)) {
            tile_16(p.x, p.x_stride, p.weight.panel(task), steps, y);
            finish_tile(p, y, 0, p.rows, task);
        }
        return;
    }
    int across = (panels + GROUP_PANELS - 1) / GROUP_PANELS, down = (p.rows + GROUP_ROWS - 1) / GROUP_ROWS;
    while (worker.take(across * down, &task)) {
        int first = task / down * GROUP_PANELS, top = task % down * GROUP_ROWS;
        int end = std::min(first + GROUP_PANELS, panels), bottom = std::min(top + GROUP_ROWS, p.rows);
        for (int row = top; row < bottom; row += ROWS)
            for (int panel = first; panel < end; panel++) {
                tile_32(p.x + row * p.x_stride, p.x_stride, p.weight.panel(panel), steps, y);
                finish_tile(p, y, row, std::min(ROWS, bottom - row), panel);
            }
    }
}
