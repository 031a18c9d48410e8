// IQ2_XXS: w[i] = d·(2·scale[g] + 1)/8·q[i], g = i / 32; eight q are an entry of a grid of 256 under signs. Of eight
// signs seven are stored: the eighth makes the number of negative ones even (tables/ksigns.cuh).
//
//   byte   0 1   2 … 65
//          d     qs, of each 32 values 8 bytes:
//          half  31 … 24 │ 23 … 16 │ 15 … 8  │ 7 … 0      31 … 28 │ 27 … 21 │ 20 … 14 │ 13 … 7  │ 6 … 0
//                grid[3] │ grid[2] │ grid[1] │ grid[0]    scale   │ sign[3] │ sign[2] │ sign[1] │ sign[0]
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq2_xxs.cuh"
#include "tables/ksigns.cuh"

struct IQ2_XXS {
    uint16_t d;
    uint8_t qs[64];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ uint32_t signs_and_scale(int s) const { return load_word_2(qs + 8 * s, 1); }  // 66-byte blocks

    __device__ float scale(int s, int) const {
        return __fmul_rn(half_to_float(d), (float)(2 * (signs_and_scale(s) >> 28) + 1) * 0.125f);
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int signs = KSIGNS[signs_and_scale(s) >> 7 * (j / 2) & 127];
        return with_signs(IQ2_XXS_GRID[qs[8 * s + j / 2]][j % 2], signs >> 4 * (j % 2));
    }
    static constexpr int ENTRIES = 256;
    __device__ static uint32_t entry(int i) { return iq2_entry(IQ2_XXS_GRID[i]); }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
        const uint32_t signs = signs_and_scale(s);
#pragma unroll
        for (int l = 0; l < 4; ++l)
            iq2_codes(grid[qs[8 * s + l]], eight_signs(signs >> 7 * l), q[2 * l], q[2 * l + 1]);
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq2_xxs
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ2_XXS) == 66, "IQ2_XXS is 66 bytes without padding");
