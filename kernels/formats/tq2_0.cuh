// TQ2_0: w[i] = d·(q[i] - 1), 256 values, in two halves of 128. (q = 3 does not occur in files quantized by llama.cpp.)
//
//   byte   0 … 63                             64 65
//          qs, of each 32 bytes l:            d
//          7 6     │ 5 4     │ 3 2     │ 1 0  half
//          x[96+l] │ x[64+l] │ x[32+l] │ x[l]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct TQ2_0 {
    uint8_t qs[64];
    uint16_t d;

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    // Slice s is pair s % 4 of the bytes of half s / 4.
    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = (qs[s / 4 * 32 + i] >> s % 4 * 2 & 3) - 1;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    __device__ int word(int s, int j) const {  // 66-byte blocks: only 2-byte aligned
        return subtract_bytes(load_word_2(qs + s / 4 * 32, j) >> s % 4 * 2 & 0x03030303, 0x01010101);
    }

    // llama.cpp's dequantize_row_tq2_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(TQ2_0) == 66, "TQ2_0 is 66 bytes without padding");
