// Q2_0: w[i] = d·(q[i] - 1): 64 values.
//
//   byte   0 1   2 … 17
//          d     qs          qs[j]:  7 6     │ 5 4     │ 3 2     │ 1 0
//          half                      x[4j+3] │ x[4j+2] │ x[4j+1] │ x[4j]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q2_0 {
    uint16_t d;
    uint8_t qs[16];

    static constexpr int VALUES = 64, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = (qs[s * 8 + i / 4] >> i % 4 * 2 & 3) - 1;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(qs[s * 8 + j]);
        high = word(qs[s * 8 + 4 + j]);
    }

    // The four pairs of a byte as four codes.
    __device__ static int word(uint32_t byte) {
        return subtract_bytes((byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303, 0x01010101);
    }

    // llama.cpp's dequantize_row_q2_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(Q2_0) == 18, "Q2_0 is 18 bytes without padding");
