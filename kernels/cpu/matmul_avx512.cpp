// Products by AVX-512 bf16, for CPUs without AMX. As there, a row's result does not depend on its neighbours.
#include <algorithm>
#include <immintrin.h>

#include "matmul.h"

namespace {

template <int R>
void rows_by_panel(const bf16* x, long stride, const bf16* w, int steps, float* y) {
    __m512 total[R][2] = {};
    for (int s = 0; s < steps; s++, x += STEP, w += STEP * PANEL)
        for (int pair = 0; pair < 16; pair++) {
            __m512bh left = (__m512bh)_mm512_loadu_si512(w + pair * 32);
            __m512bh right = (__m512bh)_mm512_loadu_si512(w + 512 + pair * 32);
            for (int r = 0; r < R; r++) {
                int both;
                memcpy(&both, x + r * stride + pair * 2, 4);
                __m512bh inputs = (__m512bh)_mm512_set1_epi32(both);
                total[r][0] = _mm512_dpbf16_ps(total[r][0], inputs, left);
                total[r][1] = _mm512_dpbf16_ps(total[r][1], inputs, right);
            }
        }
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(y + r * PANEL, total[r][0]);
        _mm512_storeu_ps(y + r * PANEL + 16, total[r][1]);
    }
}

}  // namespace

void multiply_avx512(const Product& p, Worker& worker) {
    constexpr int GROUP_ROWS = 256;
    alignas(64) float y[8 * PANEL];
    int steps = p.weight.steps(), panels = p.weight.panels(), down = (p.rows + GROUP_ROWS - 1) / GROUP_ROWS, task;
    while (worker.take(panels * down, &task)) {
        int panel = task / down, row = task % down * GROUP_ROWS, bottom = std::min(row + GROUP_ROWS, p.rows);
        const bf16* w = p.weight.panel(panel);
        while (row < bottom) {
            const bf16* x = p.x + row * p.x_stride;
            int count = bottom - row >= 8 ? 8 : bottom - row >= 4 ? 4 : bottom - row >= 2 ? 2 : 1;
            if (count == 8) rows_by_panel<8>(x, p.x_stride, w, steps, y);
            else if (count == 4) rows_by_panel<4>(x, p.x_stride, w, steps, y);
            else if (count == 2) rows_by_panel<2>(x, p.x_stride, w, steps, y);
            else rows_by_panel<1>(x, p.x_stride, w, steps, y);
            finish_tile(p, y, row, count, panel);
            row += count;
        }
    }
}
