// Products of bf16 activations with packed bf16 weights, and what is done with each piece of the result.
#pragma once
#include "number.h"
#include "team.h"

constexpr int PANEL = 32;  // columns (output features) of a panel
constexpr int STEP = 32;   // inputs of a step
constexpr int ROWS = 32;   // rows of a tile; activations have room for a multiple of that

// What becomes of the product y of a row and a column.
enum Finish {
    STORE = 0,  // out[row][column] = y, bf16
    WIDE = 1,   // the same, float
    ADD = 2,    // out[row][column] += y, float
    SILU = 3,   // out[row][column] = silu(gate) * up, bf16; in a panel, 16 columns of gates before 16 of ups
    GELU = 4,   // the same with gelu by its tanh approximation
};

// A weight `[n, k]`, packed as `[panels][k / 32][2][16][16][2]`: panel, step, half of the panel, pair of inputs, column of
// the half, input of the pair. Zeros stand where n or k end before that.
struct Weight {
    const void* packed;
    const float* bias;  // [n], null: none; stands as the columns do
    int n, k;
    int form;           // DENSE, or that of grouped.h in which it is packed instead

    int panels() const { return (n + PANEL - 1) / PANEL; }
    int steps() const { return (k + STEP - 1) / STEP; }
    const bf16* panel(int i) const { return static_cast<const bf16*>(packed) + long(i) * steps() * STEP * PANEL; }
};

struct Product {
    const bf16* x;  // [rows up to a multiple of 32][x_stride], x_stride at least k up to a multiple of 32, zeros past k
    long x_stride;
    int rows;
    Weight weight;
    void* out;
    long out_stride;  // elements
    Finish finish;
    int singles;  // of the first rows, how many are tokens that their sequences compute alone
};

// y: the product's rows first_row to first_row + num_rows and its panel's columns, `[num_rows][32]`.
void finish_tile(const Product& p, const float* y, int first_row, int num_rows, int panel);

// The whole team calls these; they return without waiting for the others.
void multiply_amx(const Product& p, Worker& worker);
void multiply_avx512(const Product& p, Worker& worker);
