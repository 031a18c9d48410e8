// Q1_0: w[i] = d where bit i is set, else -d: 128 values.
//
//   byte   0 1   2 … 17
//          d     qs          qs[j]:  7       …  1       0
//          half                      x[8j+7] …  x[8j+1] x[8j]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q1_0 {
    uint16_t d;
    uint8_t qs[16];

    static constexpr int VALUES = 128, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = (qs[s * 4 + i / 8] >> i % 8 & 1) ? 1 : -1;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        const uint32_t bits = load_word_2(qs, s);  // 18-byte blocks: only 2-byte aligned
        low = word(bits >> 4 * j);
        high = word(bits >> (4 * j + 16));
    }

    // Bits 0…3 as four codes: twice the bit, less 1.
    __device__ static int word(uint32_t bits) { return subtract_bytes(spread_high_bits(bits) >> 3, 0x01010101); }

    // llama.cpp's dequantize_row_q1_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(Q1_0) == 18, "Q1_0 is 18 bytes without padding");
