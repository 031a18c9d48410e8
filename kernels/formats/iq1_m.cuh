// IQ1_M: w[i] = d·(2·scale[g] + 1)/8·q[i], g = i / 16; eight q are 8·e ± 1 of an entry e of a grid of 2048. The half d
// has no field: each of the four words of scales begins with four of its bits.
//
//   byte   0 … 31        32 … 47                                    48 … 55
//          qs[k]:        qh[p]:                                     scales[v], 2 bytes each:
//          low 8 bits    7     │ 6 5 4     │ 3     │ 2 1 0          15 … 12      │ 11 10 9 │ 8 7 6 │ 5 4 3 │ 2 1 0
//          of grid[k]    minus │ grid[2p+1]│ minus │ grid[2p]       d >> 4v & 15 │ scale[4v+3] … scale[4v]
//                                (high bits)
#pragma once
#include "../common.cuh"
#include "iq1_grid.cuh"

struct alignas(4) IQ1_M {
    uint8_t qs[32];
    uint8_t qh[16];
    uint16_t scales[4];

    static constexpr int VALUES = 256, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float stored_scale() const {
        return half_to_float((uint16_t)(scales[0] >> 12 | (scales[1] >> 12) << 4 | (scales[2] >> 12) << 8 |
                                        (scales[3] >> 12) << 12));
    }
    __device__ float stored_min() const { return 0.0f; }

    __device__ float scale(int s, int h) const {
        const int of_group = scales[s / 2] >> (s % 2 * 6 + h * 3) & 7;
        return __fmul_rn(stored_scale(), (float)(2 * of_group + 1) * 0.125f);
    }
    __device__ float minimum(int, int) const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int k = 4 * s + j / 2, high = qh[k / 2] >> 4 * (k % 2);
        return iq1_word(qs[k] | (high & 7) << 8, j % 2, high & 8);
    }
    static constexpr int ENTRIES = 2048;
    __device__ static uint32_t entry(int i) { return iq1_entry(i); }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
            const int k = 4 * s + l, high = qh[k / 2] >> 4 * (k % 2);
            iq1_codes(grid[qs[k] | (high & 7) << 8], high & 8, q[2 * l], q[2 * l + 1]);
        }
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq1_m
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ1_M) == 56, "IQ1_M is 56 bytes without padding");
