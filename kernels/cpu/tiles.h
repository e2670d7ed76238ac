// AMX's tile registers, all eight of 16 rows of 64 bytes.
#pragma once
#include <cstdint>
#include <immintrin.h>

struct TileScope {
    TileScope() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        _tile_loadconfig(&config);
    }
    ~TileScope() { _tile_release(); }
};
