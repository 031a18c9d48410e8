// IQ2_S: w[i] = d·(2·scale[g] + 1)/8·q[i], g = i / 16; eight q are an entry of a grid of 1024 under eight signs.
//
//   byte   0 1   2 … 33        34 … 65           66 … 73                     74 … 81
//          d     qs[k]:        signs[k]:         qh, of each 32 values:      scales[p]:  7 6 5 4     │ 3 2 1 0
//          half  low 8 bits    bit j negates     7 6 │ 5 4 │ 3 2 │ 1 0                   scale[2p+1] │ scale[2p]
//                of grid[k]    x[8k+j]           high bits of grid[3] … [0]
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq2_s.cuh"

struct IQ2_S {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];

    static constexpr int VALUES = 256, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int h) const {
        return __fmul_rn(half_to_float(d), (float)(2 * (scales[s] >> 4 * h & 15) + 1) * 0.125f);
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int l = j / 2, k = 4 * s + l;
        return with_signs(IQ2_S_GRID[qs[k] | (qh[s] >> 2 * l & 3) << 8][j % 2], signs[k] >> 4 * (j % 2));
    }
    static constexpr int ENTRIES = 1024;
    __device__ static uint32_t entry(int i) { return iq2_entry(IQ2_S_GRID[i]); }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
            const int k = 4 * s + l;
            iq2_codes(grid[qs[k] | (qh[s] >> 2 * l & 3) << 8], signs[k], q[2 * l], q[2 * l + 1]);
        }
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq2_s
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ2_S) == 82, "IQ2_S is 82 bytes without padding");
