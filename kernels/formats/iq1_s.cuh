// IQ1_S: w[i] = d·(2·scale[g] + 1)/8·q[i], g = i / 32; eight q are 8·e ± 1 of an entry e of a grid of 2048.
//
//   byte   0 1   2 … 33        34 … 49
//          d     qs[k]:        qh, of each 32 values 2 bytes:
//          half  low 8 bits    15    │ 14 13 12 │ 11 10 9 │ 8 7 6 │ 5 4 3 │ 2 1 0
//                of grid[k]    minus │ scale    │ high bits of grid[3] … [0]
#pragma once
#include "../common.cuh"
#include "iq1_grid.cuh"

struct IQ1_S {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int) const {
        return __fmul_rn(half_to_float(d), (float)(2 * (qh[s] >> 12 & 7) + 1) * 0.125f);
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int l = j / 2, high = qh[s];
        return iq1_word(qs[4 * s + l] | (high >> 3 * l & 7) << 8, j % 2, high & 0x8000);
    }
    static constexpr int ENTRIES = 2048;
    __device__ static uint32_t entry(int i) { return iq1_entry(i); }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
        const int high = qh[s];
#pragma unroll
        for (int l = 0; l < 4; ++l)
            iq1_codes(grid[qs[4 * s + l] | (high << 8 >> 3 * l & 0x700)], high & 0x8000, q[2 * l], q[2 * l + 1]);
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq1_s
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ1_S) == 50, "IQ1_S is 50 bytes without padding");
