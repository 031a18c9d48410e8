// Activations → tiled activations (packed.cuh), from Q8_1 or, quantized on the way, from float32: 128 bytes in, 72 out.
//
// A warp writes a stage (two blocks) of four tokens; four lanes share a block. Lane c has the values 4c…4c+3 and
// 16+4c…16+4c+3: a word of each of the block's four pieces of 16 bytes. After four exchanges each lane has a piece.
#include "packed.cuh"
#include "quantize/q8_1.cuh"

// Of a lane: its token and block, and where they go.
struct Place {
    int64_t token;
    int block, c;
    bool there;
    uint8_t* chunk;

    __device__ Place(uint8_t* out, int64_t four, int64_t stage, int64_t M, int64_t blocks, int64_t stages) {
        const int lane = threadIdx.x % 32;
        token = four * 4 + lane / 8, block = lane / 4 % 2, c = lane % 4;
        there = token < M && stage * 2 + block < blocks;
        chunk = out + (four / (TOKENS / 4) * stages + stage) * packed::chunk_bytes(TOKENS);
    }
};

// All lanes of a warp take part.
__device__ __forceinline__ void write(const Place& at, const float (&q)[8], uint16_t d, uint16_t s) {
    using namespace packed;
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const float factor = j ? SECOND_HALF : 1.0f;
            words[2 * j + odd] = two_halves(__fmul_rn(q[4 * j + odd], factor), __fmul_rn(q[4 * j + odd + 2], factor));
        }
    // word p of lane c is word c of piece p
    const bool odd = at.c & 1, upper = at.c & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, odd ? words[i] : words[i + 1], 1);
        words[i] = odd ? other : words[i], words[i + 1] = odd ? words[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, upper ? words[i] : words[i + 2], 2);
        words[i] = upper ? other : words[i], words[i + 2] = upper ? words[i + 2] : other;
    }
    const int row = (int)(at.token % TOKENS), piece = at.block * 4 + at.c;
    ((uint4*)at.chunk)[row * 8 + (piece ^ row % 8)] = {words[0], words[1], words[2], words[3]};
    if (at.c == 0)
        ((float2*)(at.chunk + TOKENS * 128))[at.block * TOKENS + row] = {__fmul_rn(half_to_float(d), D_FACTOR),
                                                                        z_of(half_to_float(s))};
}

// Warp i of a grid of blocks [fours of tokens, warps]: body(place) for its stages of its four tokens.
template <class Body>
__device__ __forceinline__ void for_places(uint8_t* out, int64_t M, int64_t blocks, int64_t stages, const Body& body) {
    const int64_t fours = (M + TOKENS - 1) / TOKENS * (TOKENS / 4), warps = (int64_t)gridDim.y * (blockDim.x / 32);
    for (int64_t four = blockIdx.x; four < fours; four += gridDim.x)
        for (int64_t stage = (int64_t)blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32; stage < stages; stage += warps) {
            const Place at(out, four, stage, M, blocks, stages);
            body(at, at.token * blocks + stage * 2 + at.block);
        }
}

extern "C" __global__ void tile(const Q8_1* __restrict__ x,  // (M, blocks)
                                uint8_t* __restrict__ out,   // (tiles of TOKENS, stages) chunks
                                int64_t M, int64_t blocks, int64_t stages) {
    for_places(out, M, blocks, stages, [&](const Place& at, int64_t from) {
        const Q8_1* b = x + from;
        float q[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) q[j] = at.there ? (float)b->qs[j / 4 * 16 + at.c * 4 + j % 4] : 0.0f;
        write(at, q, at.there ? b->d : 0, at.there ? b->s : 0);
    });
}

extern "C" __global__ void quantize_tiled(const float* __restrict__ x,  // (M, blocks, 32)
                                          uint8_t* __restrict__ out,    // as above
                                          int64_t M, int64_t blocks, int64_t stages) {
    for_places(out, M, blocks, stages, [&](const Place& at, int64_t from) {
        const float4* b = (const float4*)x + from * 8;
        float4 v[2] = {};
        if (at.there) v[0] = b[at.c], v[1] = b[4 + at.c];
        const Quantized block = quantized(v, at.c);
        write(at, block.q, float_to_half(block.d), float_to_half(block.s));
    });
}
