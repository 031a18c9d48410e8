// Q5_0: w[i] = d·(q[i] - 16), q = nibble + 16·(fifth bit). The fifth bits are segmented like the nibbles, not
// interleaved: bit j of qh belongs to x[j], bit j+16 to x[j+16].
//
//   byte   0 1   2 … 5               6 … 21
//          d     qh                  qs          qs[j]:  7 6 5 4 │ 3 2 1 0
//          half  bit j ↔ x[j]                            x[j+16] │ x[j]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q5_0 {
    uint16_t d;
    uint8_t qh[4];  // bytes, because a uint32_t member would be padded to offset 4
    uint8_t qs[16];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;
    static constexpr Minimum MINIMUM = Minimum::OFFSET;
    static constexpr float ZERO = 16.0f;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return __fmul_rn(-16.0f, half_to_float(d)); }

    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int, int8_t* q) const {
        const uint32_t high = load_word_2(qh, 0);
        for (int j = 0; j < 16; ++j) q[j] = (qs[j] & 0x0F) | (high >> j & 1) << 4;
        for (int j = 0; j < 16; ++j) q[j + 16] = (qs[j] >> 4) | (high >> (j + 16) & 1) << 4;
    }

    __device__ void codes4(int, int j, int& low, int& high) const {
        const uint32_t word = load_word_2(qs, j), bits = load_word_2(qh, 0);
        low = (word & 0x0F0F0F0F) | spread_high_bits(bits >> 4 * j);
        high = (word >> 4 & 0x0F0F0F0F) | spread_high_bits(bits >> (4 * j + 16));
    }

    // llama.cpp's dequantize_row_q5_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)(q - 16), d); }
};
static_assert(sizeof(Q5_0) == 22, "Q5_0 is 22 bytes without padding");
