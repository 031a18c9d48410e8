// IQ4_XS: w[i] = d·(scale[g] - 32)·q[i], g = i / 32, q = one of 16 values; scales of 6 bits.
//
//   byte   0 1   2 3                      4 … 7                                   8 … 135
//          d     scales_h:                scales_l[p]:  7 6 5 4     │ 3 2 1 0     qs, of each 16 bytes p, indices:
//          half  15 14 │ … │ 1 0                        scale[2p+1] │ scale[2p]   7 6 5 4     │ 3 2 1 0
//                high bits of scale[7] … [0]            (low bits)                x[32g+16+p] │ x[32g+p]
#pragma once
#include "../common.cuh"
#include "iq4_values.cuh"
#include "words.cuh"

struct alignas(4) IQ4_XS {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int) const {
        const int of_group = (scales_l[s / 2] >> 4 * (s % 2) & 15) | (scales_h >> 2 * s & 3) << 4;
        return __fmul_rn(half_to_float(d), (float)(of_group - 32));
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int s, int8_t* q) const {
        const uint8_t* p = qs + 16 * s;
        for (int j = 0; j < 16; ++j) q[j] = KVALUES[p[j] & 15];
        for (int j = 0; j < 16; ++j) q[j + 16] = KVALUES[p[j] >> 4];
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        iq4_words(load_word_4(qs + 16 * s, j), low, high);
    }

    // llama.cpp's dequantize_row_iq4_xs
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ4_XS) == 136, "IQ4_XS is 136 bytes without padding");
