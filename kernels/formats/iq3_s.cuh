// IQ3_S: w[i] = d·(2·scale[g] + 1)·q[i], g = i / 32; four q are an entry of a grid of 512 under signs.
//
//   byte   0 1   2 … 65        66 … 73                  74 … 105          106 … 109
//          d     qs[k]:        qh, of each 32 values:   signs[k]:         scales[p]:  7 6 5 4     │ 3 2 1 0
//          half  low 8 bits    7 │ 6 │ … │ 1 │ 0        bit j negates                 scale[2p+1] │ scale[2p]
//                of grid[k]    bit 8 of grid[7] … [0]   x[8k+j]
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq3_s.cuh"

struct IQ3_S {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int) const {
        return __fmul_rn(half_to_float(d), (float)(2 * (scales[s / 2] >> 4 * (s % 2) & 15) + 1));
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int entry = qs[8 * s + j] | (qh[s] >> j & 1) << 8;
        return with_signs(IQ3_S_GRID[entry], signs[4 * s + j / 2] >> 4 * (j % 2));
    }
    static constexpr int ENTRIES = 512;
    __device__ static uint32_t entry(int i) { return IQ3_S_GRID[i]; }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
        const int high = qh[s];
#pragma unroll
        for (int l = 0; l < 4; ++l) {
            const uint8_t* k = qs + 8 * s + 2 * l;
            const uint32_t first = grid[k[0] | (high << (8 - 2 * l) & 256)];
            const uint32_t second = grid[k[1] | (high << (7 - 2 * l) & 256)];
            signed_codes(first, second, signs[4 * s + l], q[2 * l], q[2 * l + 1]);
        }
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq3_s
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ3_S) == 110, "IQ3_S is 110 bytes without padding");
