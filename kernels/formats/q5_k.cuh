// Q5_K: w[i] = d·scale[g]·q[i] - dmin·min[g], g = i / 32: a superblock of 256 values in 8 groups.
//
//   byte   0 1   2 3    4 … 15         16 … 47                     48 … 175
//          d     dmin   scales         qh, byte l:                 qs, of each 32 bytes l:  7 6 5 4     │ 3 2 1 0
//          half  half   see scale_of   7        …  1       0                                x[64p+32+l] │ x[64p+l]
//                                      x[224+l] …  x[32+l] x[l]    p: number of the 32 bytes; bits 3…0
//                                      (bit 4)
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct alignas(4) Q5_K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::MEETS_CODES;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = true;

    // Packed as in Q4_K
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

    // Slice s is nibble s % 2 of 32 bytes, and bit s of qh's bytes.
    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = (qs[s / 2 * 32 + i] >> s % 2 * 4 & 15) | (qh[i] >> s & 1) << 4;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    __device__ int word(int s, int j) const {
        return (load_word_4(qs + s / 2 * 32, j) >> s % 2 * 4 & 0x0F0F0F0F) |
               (load_word_4(qh, j) >> s & 0x01010101) << 4;
    }

    // llama.cpp's dequantize_row_q5_K
    __device__ static float value(float d, float m, int q) { return __fadd_rn(__fmul_rn((float)q, d), m); }
};
static_assert(sizeof(Q5_K) == 176, "Q5_K is 176 bytes without padding");
