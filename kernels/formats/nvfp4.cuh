// NVFP4: w[i] = d[g]·q[i], q = twice an E2M1 (e2m1.cuh), g = i / 16: 64 values in 4 groups.
//
//   byte   0 … 3                               4 … 35
//          d, byte g: 7 │ 6 5 4 3  │ 2 1 0     qs, of each 8 bytes j, p = 0…3:  7 6 5 4    │ 3 2 1 0
//                     - │ exponent │ mantissa                                   x[16p+8+j] │ x[16p+j]
//
// A scale is half of an unsigned float with exponents of bias 7 (UE4M3). In llama.cpp's decoding the high bit is
// ignored, except for 0x7F: that is 0 and not NaN, while 0xFF is 240.
#pragma once
#include "../common.cuh"
#include "e2m1.cuh"

struct alignas(4) NVFP4 {
    uint8_t d[4];
    uint8_t qs[32];

    static constexpr int VALUES = 64, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = 0x1p-10f;  // the least scale: none is subnormal when multiplied
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int h) const { return scale_of(2 * s + h); }
    __device__ float minimum(int, int) const { return 0.0f; }

    __device__ float scale_of(int g) const {
        const uint32_t byte = d[g], bits = byte & 127;
        if (byte == 127) return 0.0f;
        if (bits < 8) return __fmul_rn((float)bits, 0x1p-10f);
        return __uint_as_float((bits << 20) + (119u << 23));  // 127 - 7, less 1 for the half
    }

    __device__ float stored_scale() const {  // the greatest: 0 if the block is zero
        float most = 0.0f;
        for (int g = 0; g < 4; ++g) most = scale_of(g) > most ? scale_of(g) : most;
        return most;
    }
    __device__ float stored_min() const { return 0.0f; }

    // Half h of slice s is group 2s + h: 8 bytes, whose low nibbles are its first 8 values.
    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = e2m1(qs[s * 16 + i / 16 * 8 + i % 8] >> i / 8 % 2 * 4 & 15);
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        const uint8_t* p = qs + s * 16;
        const uint32_t first = load_word_4(p, j % 2) >> j / 2 * 4, second = load_word_4(p, 2 + j % 2) >> j / 2 * 4;
        e2m1_words((first & 0x0F0F0F0F) | (second & 0x0F0F0F0F) << 4, low, high);
    }

    // llama.cpp's dequantize_row_nvfp4
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(NVFP4) == 36, "NVFP4 is 36 bytes without padding");
