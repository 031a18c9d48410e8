// Weights as halves in registers, and their packed layout: the codes of GGUF blocks beside premultiplied scales and
// minima. gguf_verify/kernels/halves.py decodes it and compares it with the file.
//
// Packed weights: tiles of 64 rows, one chunk per tile and stage of 64 values. Rows past N and values past K have scale
// 0. A code is stored minus its type's lowest code, CODE_LOW, as CODE_BITS bits. Thread 32w + 4g + c of a warpgroup
// has, for the rows 16w + 2g + r (r = 0, 1) and both slices s, the values 4c…4c+3 and 16+4c…16+4c+3:
//
//     chunk (tile, stage)   codes, 4 bits   [128 threads]{word of (s, r) = (0, 0), (0, 1), (1, 0), (1, 1)}
//                                           nibbles i and i + 4 of a word: values 2i and 2i + 1 of its eight
//                           codes, 8 bits   [s][128 threads]{four of r = 0, other four, four of r = 1, other four}
//                           scales          [w][g]{d[r][s][group], then m likewise}: halves if a block's scale is
//                                           stored as a half and used unchanged, otherwise float32
//
// A weight is d·q + m, rounded once to half, equal to llama.cpp's to_float followed by a conversion:
//
//   - With half scales, one instruction multiplies (HMUL2) or multiplies and adds (HFMA2) two codes, which are exact
//     halves. It rounds the exact result once. to_float is exact there, or (Q4_1, Q5_1) itself rounded, which can
//     affect a half only at a tie; the definition allows both.
//   - The others are computed in float32. A product d·q is exact there: d has at most 11 + 8 bits, and codes are so
//     short that both together have at most 24. So a fused multiply-add gives to_float's bits, and the conversion
//     rounds them.
#pragma once
#include "formats/format.cuh"
#include "words.cuh"

namespace halves {

constexpr int ROWS = 64, STAGE = 64, THREADS = 128;
constexpr int GROUPS = FORMAT::GROUP == 16 ? 2 : 1;
constexpr bool NIBBLES = CODE_BITS == 4;
constexpr bool MINIMA = FORMAT::MINIMUM == Minimum::MEETS_S || FORMAT::MINIMUM == Minimum::MEETS_CODES;
constexpr int WORDS = NIBBLES ? 1 : 2;                               // of 16 bytes, of a thread
constexpr int SCALES = 4 * GROUPS;                                   // of a thread: of two rows and two slices
constexpr int SCALE_BYTES = (HALF_SCALES ? 2 : 4) * SCALES * (MINIMA ? 2 : 1);
constexpr int SCALES_AT = THREADS * 16 * WORDS, CHUNK = SCALES_AT + 32 * SCALE_BYTES;

// The stored code that stands for zero.
template <class F = FORMAT>
__device__ constexpr int zero() {
    if constexpr (F::MINIMUM == Minimum::OFFSET) return (int)F::ZERO - (CODE_LOW);
    return -(CODE_LOW);
}
constexpr int ZERO = zero();

__device__ constexpr uint32_t twice(uint32_t half) { return half | half << 16; }
// The bits of the half -(64 + ZERO), for codes of 4 bits: 64 + ZERO is below 128, so its last place is 2^-4.
constexpr uint32_t MINUS_64 = 0xD400 + ((uint32_t)ZERO << 4);
constexpr uint32_t BASE = 0x6400 + ZERO;  // of the half 1024 + ZERO, whose last place is 1
static_assert(ZERO >= 0 && ZERO < (NIBBLES ? 64 : 1024), "a code's zero point lies among the codes");

// A thread's part of a chunk.
struct Part {
    uint4 codes[WORDS];
    uint32_t scales[SCALE_BYTES / 4];

    __device__ __forceinline__ void load(const uint8_t* chunk, int thread) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) codes[i] = ((const uint4*)chunk)[i * THREADS + thread];
        const uint8_t* from = chunk + SCALES_AT + thread / 4 * SCALE_BYTES;
        if constexpr (SCALE_BYTES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < SCALE_BYTES / 16; ++i) {
                const uint4 four = ((const uint4*)from)[i];
                scales[4 * i] = four.x, scales[4 * i + 1] = four.y;
                scales[4 * i + 2] = four.z, scales[4 * i + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < SCALE_BYTES / 8; ++i) {
                const uint2 two = ((const uint2*)from)[i];
                scales[2 * i] = two.x, scales[2 * i + 1] = two.y;
            }
        }
    }

    // Codes of half h of slice s and row r as exact halves: pairs 2·odd and 2·odd + 1 of four.
    __device__ __forceinline__ uint32_t code_pair(int s, int r, int h, int odd) const {
        if constexpr (NIBBLES) {
            const uint32_t word = s ? (r ? codes[0].w : codes[0].z) : (r ? codes[0].y : codes[0].x);
            const uint32_t of_half = h ? word >> 8 : word;
            if (!odd) return subtract_halves(masked(of_half, 0x000F000F, 0x64006400), twice(BASE));
            const uint32_t times_16 = masked(of_half, 0x00F000F0, 0x64006400);
            return multiply_add_halves(times_16, twice(0x2C00), twice(MINUS_64));  // 0x2C00 is 1/16
        } else {
            const uint4& of = codes[s * (WORDS - 1)];
            const uint32_t word = r ? (h ? of.w : of.z) : (h ? of.y : of.x);
            return subtract_halves(__byte_perm(word, 0x64646464, odd ? 0x4342 : 0x4140), twice(BASE));
        }
    }

    // The fragment of values 16h … 16h+15 of slice s, as `wgmma` and `mma` take it.
    __device__ __forceinline__ void fragment(int s, int h, uint32_t (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int at = (r * 2 + s) * GROUPS + (GROUPS == 2 ? h : 0);
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const uint32_t q = code_pair(s, r, h, odd);
                if constexpr (HALF_SCALES) {
                    const uint32_t d = __byte_perm(scales[at / 2], 0, at % 2 ? 0x3232 : 0x1010);
                    if constexpr (MINIMA) {
                        const uint32_t m = __byte_perm(scales[(SCALES + at) / 2], 0, at % 2 ? 0x3232 : 0x1010);
                        a[r + 2 * odd] = multiply_add_halves(q, d, m);
                    } else {
                        a[r + 2 * odd] = multiply_halves(q, d);
                    }
                } else {
                    const float d = __uint_as_float(scales[at]);
                    const float low = half_to_float((uint16_t)q), high = half_to_float((uint16_t)(q >> 16));
                    if constexpr (MINIMA) {
                        const float m = __uint_as_float(scales[SCALES + at]);
                        a[r + 2 * odd] = two_halves(__fmaf_rn(low, d, m), __fmaf_rn(high, d, m));
                    } else {
                        a[r + 2 * odd] = two_halves(__fmul_rn(low, d), __fmul_rn(high, d));
                    }
                }
            }
        }
    }
};

}  // namespace halves
