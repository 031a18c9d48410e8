// Two layouts that the fastest kernels use for their operands. They hold the content of GGUF rows and of Q8_1 rows, in an
// order in which a warp's lanes find their parts of a fragment side by side. gguf_verify/kernels/packed.py unpacks them.
//
// Packed weights: tiles of 128 rows, a chunk a tile and block. Rows past N and blocks past K are zero, and the number of
// blocks is even.
//
//     chunk (tile, block)    codes[128 threads]   high[128 threads]   d[32 quads][4]   m[32 quads][4]
//                            16 or 32 bytes       4, of Q5            halves           halves, of Q4_1 and Q5_1
//     thread 32w + 4g + c    has, of the rows 64t + 16w + 8r + g (t, r = 0, 1), the values 4c…4c+3 and 16+4c…16+4c+3:
//                            4-bit codes as the block has them, the first four low, or 8-bit codes, eight of a row;
//                            bit 8i + 4t + 2r + j of `high` is the fifth bit of value 16j + 4c + i
//
// A chunk is as large as 128 blocks: packing only moves bits.
//
// Strips: the threads of 32 rows (w = 0…3 of a tile) by themselves, all blocks one after the other.
//
//     part (tile, w, block)  codes[32 threads]   high[32 threads]   d[8 quads][4]   m[8 quads][4]
//
// Tiled activations: TOKENS of them and two blocks a chunk. A token's 64 codes are halves in the order of a fragment's k;
// the row's 16-byte pieces c lie at c ^ (token % 8), as `wgmma` needs them. Then d and z of each block and token.
//
//     chunk (tile, stage)    codes[TOKENS][64 halves]   scales[2 blocks][TOKENS]{float d, z}
//
// 4-bit codes become halves without arithmetic: as the lowest bits of a half they are subnormal numbers, q·2^-24, and
// four bits further up q·2^-20. So the second half of a block's activations is divided by 16 and d is multiplied by 2^24;
// both are exact. z is what a block's term adds to d·Σ, or what the weights' m is multiplied by.
#pragma once
#include "formats/format.cuh"

namespace packed {

constexpr int ROWS = 128;
constexpr bool BYTES = sizeof(FORMAT) == 34;                              // Q8_0
constexpr bool HAS_HIGH = sizeof(FORMAT) == 22 || sizeof(FORMAT) == 24;   // Q5_0, Q5_1
constexpr bool HAS_M = FORMAT::STORES_M;
constexpr int WORDS = BYTES ? 2 : 1;                                      // of codes, of a row and thread
constexpr int HIGH_AT = ROWS * 16 * WORDS, D_AT = HIGH_AT + (HAS_HIGH ? ROWS * 4 : 0), M_AT = D_AT + ROWS * 2;
constexpr int CHUNK = M_AT + (HAS_M ? ROWS * 2 : 0);
constexpr int PART = CHUNK / 4, PART_HIGH = HIGH_AT / 4, PART_D = D_AT / 4, PART_M = M_AT / 4;  // of strips
static_assert(CHUNK == ROWS * (int)sizeof(FORMAT), "packing neither adds nor drops a byte");

// s as a block's term uses it.
template <class F = FORMAT>
__device__ __forceinline__ float z_of(float s) {
    if constexpr (F::MINIMUM == Minimum::OFFSET) return __fmul_rn(-F::ZERO, s);
    return s;
}

template <class F>
__device__ __forceinline__ uint16_t m_bits(const F& block) {
    if constexpr (F::STORES_M) return block.m;
    return 0;
}

// Makes the sums of halves the sums of codes.
constexpr float D_FACTOR = BYTES ? 1.0f : 0x1p24f, SECOND_HALF = BYTES ? 1.0f : 0x1p-4f;

// Two floats that halves hold exactly, the first in the low half.
__device__ __forceinline__ uint32_t two_halves(float a, float b) {
#ifdef __CUDACC__
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    return two;
#else
    return float_to_half(a) | (uint32_t)float_to_half(b) << 16;
#endif
}

__device__ constexpr int chunk_bytes(int tokens) { return tokens * 128 + 2 * tokens * 8; }  // a multiple of 16

// One thread's part of a chunk.
struct Part {
    uint32_t codes[2][2][WORDS];  // [t][r]
    uint32_t high;
    uint2 d, m;
};

__device__ __forceinline__ void unpack(Part& p, const uint4 (&codes)[WORDS]) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        const uint4 four = codes[i];
        if (WORDS == 1) {
            p.codes[0][0][0] = four.x, p.codes[0][1][0] = four.y, p.codes[1][0][0] = four.z, p.codes[1][1][0] = four.w;
        } else {
            p.codes[i][0][0] = four.x, p.codes[i][0][WORDS - 1] = four.y;
            p.codes[i][1][0] = four.z, p.codes[i][1][WORDS - 1] = four.w;
        }
    }
}

__device__ __forceinline__ Part load(const uint8_t* chunk, int thread) {
    Part p;
    uint4 codes[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) codes[i] = ((const uint4*)chunk)[thread * WORDS + i];
    unpack(p, codes);
    if (HAS_HIGH) p.high = ((const uint32_t*)(chunk + HIGH_AT))[thread];
    p.d = ((const uint2*)(chunk + D_AT))[thread / 4];
    if (HAS_M) p.m = ((const uint2*)(chunk + M_AT))[thread / 4];
    return p;
}

// The half of [t][r] among four.
__device__ __forceinline__ float half_of(uint2 four, int t, int r) {
    const uint32_t two = t ? four.y : four.x;
    return half_to_float((uint16_t)(r ? two >> 16 : two));
}

// Fragments of tile t in halves, for two products of 16 values: a[j] as `wgmma` of hopper.cuh takes it.
__device__ __forceinline__ void half_fragments(const Part& p, int t, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                uint32_t two;  // values odd and odd + 2 of four
                if (BYTES) {   // bytes under 0x64 are 1024 + 128 + q
                    const uint32_t biased = p.codes[t][r][j * (WORDS - 1)] ^ 0x80808080;
                    two = subtract_halves(__byte_perm(biased, 0x64646464, odd ? 0x4341 : 0x4240), 0x64806480);
                } else {
                    two = (odd ? p.codes[t][r][0] >> 8 : p.codes[t][r][0]) & (j ? 0x00F000F0 : 0x000F000F);
                    if (HAS_HIGH) {
                        const int from = 8 * odd + 4 * t + 2 * r + j, to = j ? 8 : 4;
                        two |= (from > to ? p.high >> (from - to) : p.high << (to - from)) & (j ? 0x01000100 : 0x00100010);
                    }
                }
                a[j][r + 2 * odd] = two;
            }
}

// Fragments of tile t as signed bytes.
__device__ __forceinline__ void byte_fragments(const Part& p, int t, uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (BYTES) {
                a[r + 2 * j] = p.codes[t][r][j * (WORDS - 1)];
            } else {
                uint32_t four = (j ? p.codes[t][r][0] >> 4 : p.codes[t][r][0]) & 0x0F0F0F0F;
                if (HAS_HIGH) {
                    const int from = 4 * t + 2 * r + j;
                    four |= (from > 4 ? p.high >> (from - 4) : p.high << (4 - from)) & 0x10101010;
                }
                a[r + 2 * j] = four;
            }
        }
}

}  // namespace packed
