// IQ2_XS: w[i] = d·(2·scale[g] + 1)/8·q[i], g = i / 16; eight q are an entry of a grid of 512 under signs. Of eight
// signs seven are stored: the eighth makes the number of negative ones even (tables/ksigns.cuh).
//
//   byte   0 1   2 … 65                              66 … 73
//          d     qs, for each 8 values 2 bytes:      scales[p]:  7 6 5 4     │ 3 2 1 0
//          half  15 … 9 │ 8 … 0                                  scale[2p+1] │ scale[2p]
//                sign   │ grid
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq2_xs.cuh"
#include "tables/ksigns.cuh"

struct IQ2_XS {
    uint16_t d;
    uint16_t qs[32];
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
        const int entry = qs[4 * s + j / 2];
        return with_signs(IQ2_XS_GRID[entry & 511][j % 2], KSIGNS[entry >> 9] >> 4 * (j % 2));
    }
    static constexpr int ENTRIES = 512;
    __device__ static uint32_t entry(int i) { return iq2_entry(IQ2_XS_GRID[i]); }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
            const uint32_t both = qs[4 * s + l];
            iq2_codes(grid[both & 511], eight_signs(both >> 9), q[2 * l], q[2 * l + 1]);
        }
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq2_xs
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ2_XS) == 74, "IQ2_XS is 74 bytes without padding");
