// How attention is cut into tasks, and how states of split keys are merged.
#include "attention.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr int SPLIT = 256;       // keys of a part: fixed, so that a token's sum does not depend on the batch
constexpr int TASKS_A_THREAD = 4;

// New tokens of a task: many, since a task turns the keys for itself, but enough tasks for all threads.
int tokens_of_task(const Attention& a, const Batch& batch, int num_threads) {
    for (int rows = 256; rows > 32; rows /= 2) {
        int tokens = std::max(1, rows / a.group()), tasks = 0;
        for (int s = 0; s < batch.num_seqs; s++)
            tasks += (batch.starts[s + 1] - batch.starts[s] + tokens - 1) / tokens * a.kv_heads;
        if (tasks >= num_threads * TASKS_A_THREAD) return tokens;
    }
    return std::max(1, 32 / a.group());
}

void plan_single(const Attention& a, const Batch& batch, int seq, Plan& plan) {
    int token = batch.starts[seq], length = batch.lengths[seq];
    // Parts begin at multiples of their size wherever the window does.
    int low = first_seen(a, length - 1), parts = (length - 1) / SPLIT - low / SPLIT + 1;
    for (int head = 0; head < a.kv_heads; head++)
        for (int i = 0; i < parts; i++) {
            int from = (low / SPLIT + i) * SPLIT, part = parts == 1 ? -1 : plan.num_parts++;
            plan.tasks.push_back({seq, head, token, token + 1, std::max(low, from), std::min(length, from + SPLIT), part});
        }
}

template <class T>
void merge(const Attention& a, const Task* tasks, int num_parts, const float* states) {
    int dim = a.head_dim, group = a.group();
    std::vector<float> sums(dim);
    for (int g = 0; g < group; g++) {
        auto state = [&](int i) { return states + (long(tasks[i].part) * group + g) * state_size(a); };
        float top = -INFINITY, weight = 0;
        for (int i = 0; i < num_parts; i++) top = std::max(top, state(i)[dim + 1]);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int i = 0; i < num_parts; i++) {
            float share = exp2f(state(i)[dim + 1] - top);
            weight += share * state(i)[dim];
            for (int d = 0; d < dim; d++) sums[d] += share * state(i)[d];
        }
        T* out = static_cast<T*>(a.out) + tasks->first * a.out_stride + (tasks->head * group + g) * dim;
        for (int d = 0; d < dim; d++) narrow(sums[d] / weight, out + d);
    }
}

void merge_parts(const Attention& a, const Plan& plan, const float* states, Worker& worker) {
    // The same walk on every thread; each merges its share.
    int found = 0;
    for (size_t i = 0; i < plan.tasks.size();) {
        size_t end = i + 1;
        if (plan.tasks[i].part >= 0) {
            while (end < plan.tasks.size() && plan.tasks[end].part >= 0 && plan.tasks[end].first == plan.tasks[i].first &&
                   plan.tasks[end].head == plan.tasks[i].head)
                end++;
            if (found++ % worker.count == worker.id) {
                if (a.kind == FLOAT) merge<float>(a, &plan.tasks[i], end - i, states);
                else if (a.kind == BFLOAT16) merge<bf16>(a, &plan.tasks[i], end - i, states);
                else merge<f16>(a, &plan.tasks[i], end - i, states);
            }
        }
        i = end;
    }
}

}  // namespace

Plan plan_attention(const Attention& a, const Batch& batch, int num_threads) {
    Plan plan;
    int tokens = tokens_of_task(a, batch, num_threads);
    for (int seq = 0; seq < batch.num_seqs; seq++) {
        int start = batch.starts[seq], end = batch.starts[seq + 1], length = batch.lengths[seq];
        if (end - start == 1) continue;
        for (int first = start; first < end; first += tokens) {
            int last = std::min(end, first + tokens);
            int low = first_seen(a, length - (end - first)), high = length - (end - last);
            for (int head = 0; head < a.kv_heads; head++) plan.tasks.push_back({seq, head, first, last, low, high, -1});
        }
    }
    // The longest first, so that threads end together.
    auto work = [](const Task& task) { return long(task.last - task.first) * (task.high - task.low); };
    std::sort(plan.tasks.begin(), plan.tasks.end(), [&](const Task& x, const Task& y) { return work(x) > work(y); });
    for (int seq = 0; seq < batch.num_seqs; seq++)
        if (batch.starts[seq + 1] - batch.starts[seq] == 1) plan_single(a, batch, seq, plan);
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
            attend_amx(a, batch, task, states, own);
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
    if (plan.num_parts) {
        merge_parts(a, plan, states, worker);
        worker.wait();
    }
}
