// Paged attention over one layer: what is asked for, and the pieces of work that it is cut into.
#pragma once
#include <vector>

#include "number.h"
#include "team.h"

constexpr int MAX_HEAD_DIM = 512;

enum Kind { FLOAT = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// The new tokens of a step; arrays as in engine/batch.py.
struct Batch {
    int num_tokens, num_seqs, page_size;
    long table_stride;
    const int32_t* page_table;    // [num_seqs][table_stride]
    const int32_t* starts;        // [num_seqs + 1] first new token of each sequence
    const int32_t* lengths;       // [num_seqs]
    const int64_t* slots;         // [num_tokens]
    const int64_t* positions;     // [num_tokens]
};

struct Attention {
    int kind;                      // of everything
    int q_heads, kv_heads, head_dim;
    int window;                    // of the last tokens, how many are seen; 0: all
    float scale, cap;              // cap 0: none
    const void* q;                 // [num_tokens][q_stride], heads one after another
    long q_stride;
    void* k;                       // [pages][kv_heads][page_size][head_dim], and v alike
    void* v;
    void* out;                     // [num_tokens][out_stride]
    long out_stride;

    int group() const { return q_heads / kv_heads; }
};

// Some new tokens of a sequence, one KV head, and keys [low, high) of those that the tokens see.
struct Task {
    int seq, head, first, last;    // tokens, counted over the batch
    int low, high;
    long state;                    // where the first row's state goes, counted in rows, if keys are split; -1: they are not
};

// Rows whose keys were split: the states of part i stand from `state` + i * rows on.
struct Merge {
    int head, first, last;
    long state;
    int parts;
};

// A row's state: head_dim sums, their weight, and the greatest score (base 2) that both are relative to.
inline long state_size(const Attention& a) { return a.head_dim + 2; }

struct Plan {
    std::vector<Task> tasks;
    std::vector<Merge> merges;
    long num_states = 0;           // states are [num_states][state_size]
};

struct Forms {
    int simd;                      // 0: plain, 1: AVX2, 2: AVX-512
    int matrix;                    // 0: none, 1: AVX-512 bf16, 2: AMX
};

inline int first_seen(const Attention& a, int position) {
    return a.window && position >= a.window ? position - a.window + 1 : 0;
}

Plan plan_attention(const Attention& a, const Batch& batch, int num_threads);

// Memory of one thread, kept between calls.
struct Scratch {
    std::vector<char> bytes;

    // At least so many bytes, at an address divisible by 64.
    char* get(size_t size) {
        if (bytes.size() < size + 64) bytes.assign(size + 64, 0);
        return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    }
};

// All that a step's layers have to do for attention, by the whole team; returns when the output is whole.
void attend(const Attention& a, const Batch& batch, const Plan& plan, Forms forms, float* states,
            std::vector<Scratch>& scratch, Worker& worker);

// One task each; states: where split keys' states go.
void attend_plain(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch);
void attend_avx2(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch);
void attend_avx512(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch);
void attend_amx(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch);

// Whether attend_token_amx can do a task: one token's, whose keys lie as tiles want them.
bool takes_token_amx(const Attention& a, const Batch& batch, const Task& task);
void attend_token_amx(const Attention& a, const Batch& batch, const Task& task, float* states, Scratch& scratch);
