// A decoder-only transformer in bf16 over packed weights: everything between token ids and the last norm.
#pragma once
#include <algorithm>

#include "attention.h"
#include "matmul.h"

struct Rope {
    const float *cos, *sin;  // [positions][dim / 2]
    int dim;                 // channels that turn
};

// Norm weights are float, [hidden] or [head_dim], as they are multiplied; null: there is no such norm.
struct Layer {
    const float *attention_norm, *attention_post_norm, *mlp_norm, *mlp_post_norm, *q_norm, *k_norm;
    Weight qkv, out, gate_up, down;
    Rope rope;
    int window;
    void *k, *v;             // the layer's pools
};

struct Decoder {
    int num_layers, hidden, inner, q_heads, kv_heads, head_dim;
    int gate;                // SILU or GELU
    float eps, scale, cap;   // cap 0: none
    const Layer* layers;
    const float* last_norm;
    Weight head;
    Weight table;            // its rows are the embeddings, unless its `packed` is null; may be the head
    const bf16* embedding;   // [vocabulary][hidden] then
    float embedding_scale;
};

struct Workspace {
    std::vector<Scratch> scratch;                      // of each thread
    Scratch x, normed, wide, qkv, attended, inner, states;

    // Makes room for a thread's scratch each.
    void prepare(int team_size) { scratch.resize(std::max<size_t>(scratch.size(), team_size)); }

    // The same, and room for so many states, [num_states][state_size].
    float* prepare(const Attention& a, long num_states, int team_size) {
        prepare(team_size);
        return reinterpret_cast<float*>(states.get(sizeof(float) * num_states * state_size(a)));
    }
};

// Hidden states of the batch's tokens into out, [num_tokens][hidden] bf16.
void decode(const Decoder& model, const Batch& batch, const int64_t* ids, bf16* out, const Team& team, Forms forms,
            Workspace& space);

// out[row][token] = hidden[row] times the head, float. hidden: [rows][hidden].
void head_logits(const Decoder& model, const bf16* hidden, int rows, float* out, const Team& team, Forms forms,
                 Workspace& space);
