// How attention is cut into tasks, and how states of split keys are merged.
#include "attention.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr int SPLIT = 256;       // keys of a single token's part: fixed, so that its sum does not depend on the batch
constexpr int LEAST_KEYS = 1024; // of a part of several tokens' keys
constexpr int TASKS_A_THREAD = 4;

// How the new tokens of sequences with several are cut.
struct Cut {
    int tokens;  // of a task
    int parts;   // of the keys, at most

    int parts_of(int keys) const { return std::clamp(keys / LEAST_KEYS, 1, parts); }
};

int num_tasks(const Attention& a, const Batch& batch, Cut cut) {
    int tasks = 0;
    for (int s = 0; s < batch.num_seqs; s++)
        tasks += (batch.starts[s + 1] - batch.starts[s] + cut.tokens - 1) / cut.tokens * cut.parts_of(batch.lengths[s]);
    return tasks * a.kv_heads;
}

// Many tokens, since a task turns the keys for itself, but enough tasks for all threads: of few tokens and many keys, the
// keys are split before the tokens are.
Cut cut_of(const Attention& a, const Batch& batch, int num_threads) {
    int wanted = num_threads > 1 ? num_threads * TASKS_A_THREAD : 1;
    for (int rows = 256; rows > 32; rows /= 2) {
        Cut cut{std::max(1, rows / a.group()), 1};
        int whole = std::max(1, num_tasks(a, batch, cut));
        cut.parts = (wanted + whole - 1) / whole;
        if (num_tasks(a, batch, cut) >= wanted) return cut;
    }
    return {std::max(1, 32 / a.group()), 1};
}

// Tasks of the tokens' keys [low, high), split at multiples of `size`.
void split(const Attention& a, int seq, int first, int last, int low, int high, int size, Plan& plan) {
    int parts = (high - 1) / size - low / size + 1, rows = (last - first) * a.group();
    for (int head = 0; head < a.kv_heads; head++) {
        if (parts > 1) plan.merges.push_back({head, first, last, plan.num_states, parts});
        for (int i = 0; i < parts; i++) {
            int from = (low / size + i) * size;
            plan.tasks.push_back({seq, head, first, last, std::max(low, from), std::min(high, from + size),
                                  parts > 1 ? plan.num_states : -1});
            if (parts > 1) plan.num_states += rows;
        }
    }
}

template <class T>
void merge(const Attention& a, const Merge& merge, const float* states, float* sums) {
    int dim = a.head_dim, group = a.group(), rows = (merge.last - merge.first) * group;
    for (int r = 0; r < rows; r++) {
        auto state = [&](int i) { return states + (merge.state + long(i) * rows + r) * state_size(a); };
        float top = -INFINITY, weight = 0;
        for (int i = 0; i < merge.parts; i++) top = std::max(top, state(i)[dim + 1]);
        std::fill(sums, sums + dim, 0.0f);
        for (int i = 0; i < merge.parts; i++) {
            float share = exp2f(state(i)[dim + 1] - top);
            weight += share * state(i)[dim];
            for (int d = 0; d < dim; d++) sums[d] += share * state(i)[d];
        }
        T* out = static_cast<T*>(a.out) + (merge.first + r / group) * a.out_stride + (merge.head * group + r % group) * dim;
        for (int d = 0; d < dim; d++) narrow(sums[d] / weight, out + d);
    }
}

void merge_parts(const Attention& a, const Plan& plan, const float* states, Worker& worker) {
    float sums[MAX_HEAD_DIM];
    int i;
    while (worker.take(plan.merges.size(), &i)) {
        if (a.kind == FLOAT) merge<float>(a, plan.merges[i], states, sums);
        else if (a.kind == BFLOAT16) merge<bf16>(a, plan.merges[i], states, sums);
        else merge<f16>(a, plan.merges[i], states, sums);
    }
}

}  // namespace

Plan plan_attention(const Attention& a, const Batch& batch, int num_threads) {
    Plan plan;
    Cut cut = cut_of(a, batch, num_threads);
    for (int seq = 0; seq < batch.num_seqs; seq++) {
        int start = batch.starts[seq], end = batch.starts[seq + 1], length = batch.lengths[seq];
        if (end - start == 1) continue;
        int parts = cut.parts_of(length), size = (length + parts - 1) / parts;
        size = (size + SPLIT - 1) / SPLIT * SPLIT;
        for (int first = start; first < end; first += cut.tokens) {
            int last = std::min(end, first + cut.tokens);
            split(a, seq, first, last, first_seen(a, length - (end - first)), length - (end - last), size, plan);
        }
    }
    // The longest first, so that threads end together.
    auto work = [](const Task& task) { return long(task.last - task.first) * (task.high - task.low); };
    std::sort(plan.tasks.begin(), plan.tasks.end(), [&](const Task& x, const Task& y) { return work(x) > work(y); });
    for (int seq = 0; seq < batch.num_seqs; seq++) {
        int token = batch.starts[seq], length = batch.lengths[seq];
        if (batch.starts[seq + 1] - token == 1)
            split(a, seq, token, token + 1, first_seen(a, length - 1), length, SPLIT, plan);
    }
    return plan;
}

void attend(const Attention& a, const Batch& batch, const Plan& plan, Forms forms, float* states,
            std::vector<Scratch>& scratch, Worker& worker) {
    int i;
    while (worker.take(plan.tasks.size(), &i)) {
        const Task& task = plan.tasks[i];
        Scratch& own = scratch[worker.id];
#ifdef HAVE_AMX
        if (forms.matrix == 2 && a.kind == BFLOAT16) {
            if (takes_token_amx(a, batch, task)) attend_token_amx(a, batch, task, states, own);
            else attend_amx(a, batch, task, states, own);
            continue;
        }
#endif
#ifdef HAVE_AVX512
        if (forms.simd == 2) {
            attend_avx512(a, batch, task, states, own);
            continue;
        }
#endif
#ifdef HAVE_AVX2
        if (forms.simd == 1) {
            attend_avx2(a, batch, task, states, own);
            continue;
        }
#endif
        attend_plain(a, batch, task, states, own);
    }
    worker.wait();
    if (!plan.merges.empty()) {
        merge_parts(a, plan, states, worker);
        worker.wait();
    }
}
