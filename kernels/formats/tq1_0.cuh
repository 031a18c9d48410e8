// TQ1_0: w[i] = d·(t[i] - 1), t = 0, 1 or 2: 256 values. A byte represents the fraction byte/256, and holds up to five
// values as its first digits in base 3.
//
//   byte   0 … 31                     32 … 47                      48 … 51                   52 53
//          qs, byte l:                qs, byte 32+l:               qh, byte l:               d
//          x[l], x[32+l] … x[128+l]   x[160+l], x[176+l] …         x[240+l], x[244+l] …      half
//                                     x[224+l]                     x[252+l]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct TQ1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;

    static constexpr int VALUES = 256, GROUP = 32;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ static uint32_t power_of_3(int n) { return (uint32_t)(0x511B090301ull >> 8 * n) & 255; }  // n = 0 … 4

    // Digit n: 3^n·byte/256 without its whole part, times 3, is at least the digit.
    __device__ static int digit(uint8_t byte, int n) { return (byte * power_of_3(n) & 255) * 3 >> 8; }

    // Slices 0…4 are a digit each of 32 bytes, 5 and 6 two digits each of the other 16, 7 is their last one and qh.
    __device__ void unpack(int s, int8_t* q) const {
        if (s < 5) {
            for (int i = 0; i < 32; ++i) q[i] = digit(qs[i], s) - 1;
            return;
        }
        for (int i = 0; i < 16; ++i) q[i] = digit(qs[32 + i], 2 * s - 10) - 1;
        for (int i = 0; i < 16; ++i) q[16 + i] = (s < 7 ? digit(qs[32 + i], 2 * s - 9) : digit(qh[i % 4], i / 4)) - 1;
    }

    // Digit n of four bytes, less 1. Two bytes at a time: 255·81 has 16 bits.
    __device__ static int digits(uint32_t bytes, int n) {
        const uint32_t even = (bytes & 0x00FF00FF) * power_of_3(n) & 0x00FF00FF;
        const uint32_t odd = (bytes >> 8 & 0x00FF00FF) * power_of_3(n) & 0x00FF00FF;
        return subtract_bytes((even * 3 >> 8 & 0x00030003) | (odd * 3 & 0x03000300), 0x01010101);
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {  // 54-byte blocks: only 2-byte aligned
        low = s < 5 ? digits(load_word_2(qs, j), s) : digits(load_word_2(qs + 32, j), 2 * s - 10);
        if (s < 5)
            high = digits(load_word_2(qs, j + 4), s);
        else
            high = s < 7 ? digits(load_word_2(qs + 32, j), 2 * s - 9) : digits(load_word_2(qh, 0), j);
    }

    // llama.cpp's dequantize_row_tq1_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(TQ1_0) == 54, "TQ1_0 is 54 bytes without padding");
