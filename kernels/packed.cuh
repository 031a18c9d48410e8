// Two layouts of the operands of the fastest kernels. They hold the content of GGUF rows and of Q8_1 rows, in an order
// in which the parts of a fragment for a warp's lanes are contiguous. gguf_verify/kernels/packed.py decodes them, and
// derives the macros from the type's record: CODE_BITS is 4 or 5 if codes are unsigned and no wider, otherwise 8 for
// signed bytes; HALF_SCALES if a block has one scale, which is a half, and at most one minimum, also a half.
//
// Packed weights: tiles of 128 rows, one chunk per tile and slice of 32 values. Rows past N and slices past K are zero,
// and the number of slices is even.
//
//     chunk (tile, slice)    codes[128 threads]   high[128 threads]   d[GROUPS][32 quads][4]   m[GROUPS][32 quads][4]
//                            16 or 32 bytes       4, of 5 bits        halves or floats         the same, of minima
//     thread 32w + 4g + c    has, of the rows 64t + 16w + 8r + g (t, r = 0, 1), the values 4c…4c+3 and 16+4c…16+4c+3:
//                            4-bit codes, the first four low, or 8-bit codes, eight of a row;
//                            bit 8i + 4t + 2r + j of `high` is the fifth bit of value 16j + 4c + i
//     d, m                   of [t][r], by quad 8w + g; two GROUPS where no more than 16 values share a scale
//
// For types with blocks of 32 values under halves whose codes are stored unchanged (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) a
// chunk is as large as 128 blocks: packing only moves bits. For others scales are multiplied out to floats, and codes
// of fewer bits, or from tables, are bytes: Q4_K takes 6 bits per weight, Q5_K 7, Q2_K 8, Q6_K and similar types 10,
// IQ4_XS and similar types 9.
//
// Strips: the threads of 32 rows (w = 0…3 of a tile) separately, with all slices contiguous.
//
//     part (tile, w, slice)  codes[32 threads]   high[32 threads]   d[GROUPS][8 quads][4]   m[GROUPS][8 quads][4]
//
// Tiled activations: a chunk has TOKENS tokens and two slices. A token's 64 codes are halves in the order of a
// fragment's k; the row's 16-byte pieces c are at c ^ (token % 8), as `wgmma` needs them. Then d of each slice and
// token, with z (common.cuh) if the weights' type has one: of each group if z is computed from the group's codes.
//
//     chunk (tile, stage)    codes[TOKENS][64 halves]   scales[2 slices][Z_GROUPS][TOKENS]{float d, z}
//
// 4-bit codes become halves without arithmetic: as the lowest bits of a half they are subnormal numbers, q·2^-24, and
// four bits further up q·2^-20. So the second half of a slice's activations is divided by 16 and d is multiplied by 2^24;
// both are exact.
#pragma once
#include "formats/format.cuh"
#include "formats/words.cuh"

namespace packed {

constexpr int ROWS = 128;
constexpr bool BYTES = CODE_BITS == 8, HAS_HIGH = CODE_BITS == 5;
constexpr int SLICE_GROUPS = Scales<FORMAT>::GROUPS;
constexpr bool HAS_M = Scales<FORMAT>::MINIMA, HAS_Z = FORMAT::MINIMUM != Minimum::NONE;
constexpr int WORDS = BYTES ? 2 : 1;                                      // of codes, of a row and thread
constexpr int SCALES_OF_ROWS = SLICE_GROUPS * ROWS * (HALF_SCALES ? 2 : 4);
constexpr int HIGH_AT = ROWS * 16 * WORDS, D_AT = HIGH_AT + (HAS_HIGH ? ROWS * 4 : 0), M_AT = D_AT + SCALES_OF_ROWS;
constexpr int CHUNK = M_AT + (HAS_M ? SCALES_OF_ROWS : 0);
constexpr int PART = CHUNK / 4, PART_HIGH = HIGH_AT / 4, PART_D = D_AT / 4, PART_M = M_AT / 4;  // of strips
static_assert(CODE_BITS == 4 || CODE_BITS == 5 || CODE_BITS == 8, "widths of codes that are packed");

// Makes the sums of halves the sums of codes.
constexpr float D_FACTOR = BYTES ? 1.0f : 0x1p24f, SECOND_HALF = BYTES ? 1.0f : 0x1p-4f;

constexpr int Z_GROUPS = FORMAT::MINIMUM == Minimum::MEETS_CODES ? SLICE_GROUPS : 1;
constexpr int TOKEN_SCALES = HAS_Z ? Z_GROUPS * 8 : 4;  // bytes, of a token and slice
__device__ constexpr int chunk_bytes(int tokens) { return tokens * (128 + 2 * TOKEN_SCALES); }  // a multiple of 16

// The codes of one thread's part of a chunk.
struct Part {
    uint32_t codes[2][2][WORDS];  // [t][r]
    uint32_t high;
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
    return p;
}

// The half of [t][r] among four.
__device__ __forceinline__ float half_of(uint2 four, int t, int r) {
    const uint32_t two = t ? four.y : four.x;
    return half_to_float((uint16_t)(r ? two >> 16 : two));
}

// The scales [t][r] of a thread's rows, of group h: `scales` is D_AT or M_AT of a chunk.
__device__ __forceinline__ void load_scales(float (&of)[2][2], const uint8_t* scales, int h, int thread) {
    const int quad = h * (ROWS / 4) + thread / 4;
    if (HALF_SCALES) {
        const uint2 four = ((const uint2*)scales)[quad];
#pragma unroll
        for (int i = 0; i < 4; ++i) of[i / 2][i % 2] = half_of(four, i / 2, i % 2);
    } else {
        const float4 four = ((const float4*)scales)[quad];
        of[0][0] = four.x, of[0][1] = four.y, of[1][0] = four.z, of[1][1] = four.w;
    }
}

// The fragment of tile t in halves, for a product of the 16 values of half j: in the layout for `wgmma` of hopper.cuh.
__device__ __forceinline__ void half_fragment(const Part& p, int t, int j, uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
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
            a[r + 2 * odd] = two;
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
