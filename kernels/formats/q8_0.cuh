// Q8_0: w[i] = d·q[i]. The quants begin at offset 2 of a 34-byte block, so they cannot be loaded as 4-byte words.
//
//   byte   0 1   2 … 33
//          d     qs          qs[i] ↔ x[i], signed
//          half
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q8_0 {
    uint16_t d;
    int8_t qs[32];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;
    static constexpr Minimum MINIMUM = Minimum::NONE;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }

    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = qs[i];
    }

    __device__ void codes4(int, int j, int& low, int& high) const {
        low = load_word_2(qs, j);
        high = load_word_2(qs, j + 4);
    }

    // llama.cpp's dequantize_row_q8_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(Q8_0) == 34, "Q8_0 is 34 bytes without padding");
