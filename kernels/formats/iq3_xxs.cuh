// IQ3_XXS: w[i] = d·(2·scale[g] + 1)/4·q[i], g = i / 32; four q are an entry of a grid of 256 under signs. Of eight
// signs seven are stored: the eighth makes the number of negative ones even (tables/ksigns.cuh).
//
//   byte   0 1   2 … 65      66 … 97
//          d     qs[k]:      scales_and_signs, of each 32 values:
//          half  grid[k]     31 … 28 │ 27 … 21 │ 20 … 14 │ 13 … 7  │ 6 … 0
//                            scale   │ sign[3] │ sign[2] │ sign[1] │ sign[0]
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq3_xxs.cuh"
#include "tables/ksigns.cuh"

struct IQ3_XXS {
    uint16_t d;
    uint8_t qs[64];
    uint8_t scales_and_signs[32];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ uint32_t signs_and_scale(int s) const { return load_word_2(scales_and_signs, s); }  // 98-byte blocks

    __device__ float scale(int s, int) const {
        return __fmul_rn(half_to_float(d), (float)(2 * (signs_and_scale(s) >> 28) + 1) * 0.25f);
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ int word(int s, int j) const {  // codes of x[4j…4j+3] of the slice, j = 0…7
        const int signs = KSIGNS[signs_and_scale(s) >> 7 * (j / 2) & 127];
        return with_signs(IQ3_XXS_GRID[qs[8 * s + j]], signs >> 4 * (j % 2));
    }
    static constexpr int ENTRIES = 256;
    __device__ static uint32_t entry(int i) { return IQ3_XXS_GRID[i]; }
    template <class Grid>
    __device__ __forceinline__ void codes(int s, const Grid& grid, int (&q)[8]) const {
        const uint32_t signs = signs_and_scale(s);
#pragma unroll
        for (int l = 0; l < 4; ++l) {
            const uint8_t* k = qs + 8 * s + 2 * l;
            signed_codes(grid[k[0]], grid[k[1]], eight_signs(signs >> 7 * l), q[2 * l], q[2 * l + 1]);
        }
    }
    __device__ void unpack(int s, int8_t* q) const {
        for (int j = 0; j < 8; ++j) store_codes(q + 4 * j, word(s, j));
    }
    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    // llama.cpp's dequantize_row_iq3_xxs
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ3_XXS) == 98, "IQ3_XXS is 98 bytes without padding");
