// What Python calls. Nothing here throws but for lack of memory; arguments are checked before they come.
#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <algorithm>

#include "decoder.h"
#include "grouped.h"

namespace {

// One row of x, `[num_tokens][kv_heads][head_dim]` with any stride of tokens, into its slot.
void store_rows(const Attention& a, const Batch& batch, const void* x, long stride, void* pool, Worker& worker) {
    size_t size = a.kind == FLOAT ? 4 : 2, row = a.head_dim * size;
    for (int t = worker.id; t < batch.num_tokens; t += worker.count) {
        long page = batch.slots[t] / batch.page_size, offset = batch.slots[t] % batch.page_size;
        for (int h = 0; h < a.kv_heads; h++) {
            const char* from = static_cast<const char*>(x) + (t * stride + h * a.head_dim) * size;
            char* to = static_cast<char*>(pool) + ((page * a.kv_heads + h) * batch.page_size + offset) * row;
            std::copy_n(from, row, to);
        }
    }
}

}  // namespace

extern "C" {

// Whether this process may use AMX: Linux wants to be asked.
int allow_amx() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr int ASK = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
    return 0;
#endif
}

Workspace* new_workspace() { return new Workspace; }

void free_workspace(Workspace* space) { delete space; }

// k, v: the new tokens', `[num_tokens][kv_heads][head_dim]` with strides of tokens.
void attention(const Attention* a, const Batch* batch, const void* k, long k_stride, const void* v, long v_stride,
               const Team* team, Forms forms, Workspace* space) {
    Plan plan = plan_attention(*a, *batch, team->size);
    float* states = space->prepare(*a, plan.num_states, team->size);
    run(*team, [&](Worker& worker) {
        store_rows(*a, *batch, k, k_stride, a->k, worker);
        store_rows(*a, *batch, v, v_stride, a->v, worker);
        worker.wait();
        attend(*a, *batch, plan, forms, states, space->scratch, worker);
    });
}

#ifdef HAVE_BF16
// Rows of `from`, [n][k], to their places in `to`, which is as Weight says and starts as zeros. place[i]: the column that row
// i becomes.
void pack_weight(const bf16* from, const int32_t* place, int n, int k, bf16* to, const Team* team) {
    constexpr int TOGETHER = 16;  // rows, which lie beside each other in the panel as well
    int steps = (k + STEP - 1) / STEP;
    run(*team, [&](Worker& worker) {
        for (int top = worker.id * TOGETHER; top < n; top += worker.count * TOGETHER) {
            int count = std::min(TOGETHER, n - top);
            bf16* at[TOGETHER];
            for (int r = 0; r < count; r++) {
                int column = place[top + r];
                at[r] = to + long(column / PANEL) * steps * STEP * PANEL + column % PANEL / 16 * 512 + column % 16 * 2;
            }
            for (int i = 0; i < k; i++) {
                long offset = i / STEP * STEP * PANEL + i % STEP / 2 * 32 + i % 2;
                for (int r = 0; r < count; r++) at[r][offset] = from[long(top + r) * k + i];
            }
        }
        worker.wait();
    });
}

// As pack_groups says.
void pack_grouped(const uint8_t* from, const int32_t* row_of, int n, int k, int form, uint8_t* to, const Team* team) {
    run(*team, [&](Worker& worker) {
        pack_groups(from, row_of, n, k, form, to, worker);
        worker.wait();
    });
}

// Large pages, so that reading weights once a step does not also read page tables.
void want_large_pages(void* start, size_t size) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t SMALL = 4096;
    uintptr_t first = (reinterpret_cast<uintptr_t>(start) + SMALL - 1) / SMALL * SMALL;
    uintptr_t end = (reinterpret_cast<uintptr_t>(start) + size) / SMALL * SMALL;
    if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

void release_memory() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

// The first of ids that is no token, and nothing done then; -1 otherwise.
long decoder_forward(const Decoder* model, const Batch* batch, const int64_t* ids, bf16* out, const Team* team, Forms forms,
                     Workspace* space) {
    for (int t = 0; t < batch->num_tokens; t++)
        if (ids[t] < 0 || ids[t] >= model->head.n) return t;
    decode(*model, *batch, ids, out, *team, forms, *space);
    return -1;
}

void decoder_logits(const Decoder* model, const bf16* hidden, int rows, float* out, const Team* team, Forms forms,
                    Workspace* space) {
    head_logits(*model, hidden, rows, out, *team, forms, *space);
}
#endif
}
