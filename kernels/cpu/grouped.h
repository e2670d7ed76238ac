// Weights in groups of 32 inputs that share a scale, as GGUF has them: 4 bits with or without a least value, or 8 bits.
#pragma once
#include "attention.h"
#include "matmul.h"

// What a value of quant q is. Q4_0: (q - 8) * scale. Q4_1: q * scale + least. Q8_0: q * scale, kept as q + 128.
enum WeightForm { DENSE = 0, Q4_0 = 1, Q4_1 = 2, Q8_0 = 3 };

constexpr int FEW_ROWS = 12;  // as many are multiplied as whole numbers, more in bf16

// Of a packed weight, a panel's step: quants of 32 columns and 32 inputs, then scales `[32]` in fp16, then, for Q4_1, least
// values alike. Four inputs of a column lie together. 4 bits: `[8][16][4]` bytes, of a byte the low half is of columns 0 to
// 15, the high one of 16 to 31. 8 bits: `[8][2][16][4]`. Where n or k end before that, scales and least values are 0.
constexpr int quant_bytes(int form) { return form == Q8_0 ? 1024 : 512; }
constexpr int step_bytes(int form) { return quant_bytes(form) + (form == Q4_1 ? 2 : 1) * PANEL * 2; }

// Bytes of a group in a GGUF file: scale, least value, quants.
constexpr int file_bytes(int form) { return form == Q8_0 ? 34 : form == Q4_1 ? 20 : 18; }

inline const uint8_t* panel_of(const Weight& w, int panel) {
    return reinterpret_cast<const uint8_t*>(w.packed) + long(panel) * w.steps() * step_bytes(w.form);
}

// Packs rows of a file, `[n][k / 32][file_bytes]`; row_of[column] is the row that becomes a column, -1: none. Panels in turn
// to each thread.
void pack_groups(const uint8_t* from, const int32_t* row_of, int n, int k, int form, uint8_t* to, Worker& worker);

// A row of the weight, `[k]`.
void unpack_row(const Weight& w, long row, float* out);

// A panel as matmul.h has it, rounded to bf16.
void unpack_panel(const Weight& w, int panel, bf16* out);

// The whole team calls this; it returns without waiting for the others. scratch: of the thread.
void multiply_grouped(const Product& p, Forms forms, Scratch& scratch, Worker& worker);
