// Q4_K: w[i] = d·scale[g]·q[i] - dmin·min[g], g = i / 32: a superblock of 256 values in 8 groups.
//
//   byte   0 1   2 3    4 … 15         16 … 143
//          d     dmin   scales         qs, of each 32 bytes p:  7 6 5 4    │ 3 2 1 0
//          half  half   see scale_min                           x[64i+32+p]│ x[64i+p]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct alignas(4) Q4_K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qs[128];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::MEETS_CODES;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = true;

    // llama.cpp's get_scale_min_k4: for groups 0…3 six contiguous bits, for 4…7 four in a nibble and two above the
    // others
    __device__ int scale_of(int g) const {
        return g < 4 ? scales[g] & 63 : (scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4;
    }
    __device__ int min_of(int g) const {
        return g < 4 ? scales[g + 4] & 63 : scales[g + 4] >> 4 | (scales[g] >> 6) << 4;
    }

    __device__ float scale(int s, int) const { return __fmul_rn(half_to_float(d), (float)scale_of(s)); }
    __device__ float minimum(int s, int) const { return -__fmul_rn(half_to_float(dmin), (float)min_of(s)); }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return half_to_float(dmin); }

    __device__ void unpack(int s, int8_t* q) const {
        const uint8_t* p = qs + s / 2 * 32;
        const int shift = s % 2 * 4;
        for (int i = 0; i < 32; ++i) q[i] = p[i] >> shift & 0x0F;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        const uint8_t* p = qs + s / 2 * 32;
        const int shift = s % 2 * 4;
        low = load_word_4(p, j) >> shift & 0x0F0F0F0F;
        high = load_word_4(p, j + 4) >> shift & 0x0F0F0F0F;
    }

    // llama.cpp's dequantize_row_q4_K
    __device__ static float value(float d, float m, int q) { return __fadd_rn(__fmul_rn((float)q, d), m); }
};
static_assert(sizeof(Q4_K) == 144, "Q4_K is 144 bytes without padding");
