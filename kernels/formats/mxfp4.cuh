// MXFP4: w[i] = 2^(e-128)·q[i], q = twice an E2M1 (e2m1.cuh). The scale is half of the standard's 2^(e-127), and not
// NaN for e = 255: llama.cpp decodes it in this way, although its check of a file (ggml_validate_row_data) refuses it.
//
//   byte   0    1 … 16
//          e    qs          qs[j]:  7 6 5 4 │ 3 2 1 0
//          E8M0                     x[j+16] │ x[j]
#pragma once
#include "../common.cuh"
#include "e2m1.cuh"

struct MXFP4 {
    uint8_t e;
    uint8_t qs[16];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = 0x1p-126f;  // below it (e = 0 and 1) d is a subnormal float
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const {  // 2^-128 and 2^-127 are subnormal
        return __uint_as_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const {  // NaN if e encodes it, infinite if a value is
        if (e == 255) return __uint_as_float(0x7FC00000u);
        if (e < 253) return scale(0, 0);  // 12·2^124 is a float
        float most = 0.0f;
        for (int j = 0; j < 16; ++j) {
            const int low = e2m1(qs[j] & 7), high = e2m1(qs[j] >> 4 & 7);
            most = fmaxf(most, __fmul_rn((float)(low > high ? low : high), scale(0, 0)));
        }
        return most <= 0x1.fffffep127f ? scale(0, 0) : most;
    }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int, int8_t* q) const {
        for (int j = 0; j < 16; ++j) q[j] = e2m1(qs[j] & 15);
        for (int j = 0; j < 16; ++j) q[j + 16] = e2m1(qs[j] >> 4);
    }

    __device__ void codes4(int, int j, int& low, int& high) const {  // 17-byte blocks: not aligned at all
        e2m1_words(load_word_1(qs, j), low, high);
    }

    // llama.cpp's dequantize_row_mxfp4
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(MXFP4) == 17, "MXFP4 is 17 bytes without padding");
