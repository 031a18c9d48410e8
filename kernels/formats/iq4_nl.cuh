// IQ4_NL: w[i] = d·q[i], q = one of 16 values.
//
//   byte   0 1   2 … 17
//          d     qs, indices of the values:  qs[j]:  7 6 5 4 │ 3 2 1 0
//          half                                      x[j+16] │ x[j]
#pragma once
#include "../common.cuh"
#include "iq4_values.cuh"
#include "words.cuh"

struct IQ4_NL {
    uint16_t d;
    uint8_t qs[16];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int, int8_t* q) const {
        for (int j = 0; j < 16; ++j) q[j] = KVALUES[qs[j] & 15];
        for (int j = 0; j < 16; ++j) q[j + 16] = KVALUES[qs[j] >> 4];
    }

    __device__ void codes4(int, int j, int& low, int& high) const {
        iq4_words(load_word_2(qs, j), low, high);  // 18-byte blocks: only 2-byte aligned
    }

    // llama.cpp's dequantize_row_iq4_nl
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(IQ4_NL) == 18, "IQ4_NL is 18 bytes without padding");
