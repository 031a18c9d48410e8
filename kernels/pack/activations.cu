// Activations → tiled activations (packed.cuh), from Q8_1 or, with quantization, from float32: 128 bytes in, 68 to 80
// out. A warp writes a stage (two blocks) of four tokens; four lanes share a block. Lane c has the values 4c…4c+3 and
// 16+4c…16+4c+3: a word of each of the block's four 16-byte pieces. After four exchanges each lane has a piece.
#include "async.cuh"
#include "packed.cuh"
#include "quantize/q8_1.cuh"

// The row of x for a token. EXPERTS: that of a slot, of which each row has `of_row`, or none (routing.cu).
struct Routing {
#ifdef EXPERTS
    const int32_t* slots;
    int64_t used, of_row;
    __device__ int64_t source(int64_t token) const { return slots[token] < used ? slots[token] / of_row : -1; }
#else
    __device__ int64_t source(int64_t token) const { return token; }
#endif
};
#ifdef EXPERTS  // tokens are tiles of slots, M rows of x
#define ROUTING_PARAMETERS , int64_t tokens, const int32_t *__restrict__ slots, int64_t used, int64_t of_row
#define ROUTING tokens, Routing { slots, used, of_row }
#else
#define ROUTING_PARAMETERS
#define ROUTING M, Routing {}
#endif

// The token and block of a lane, and their destination.
struct Place {
    int64_t token, from;
    int block, c;
    bool there;
    uint8_t* chunk;

    __device__ Place(uint8_t* out, int64_t four, int64_t stage, int64_t M, int64_t blocks, int64_t stages,
                     const Routing& routing) {
        const int lane = threadIdx.x % 32;
        token = four * 4 + lane / 8, block = lane / 4 % 2, c = lane % 4;
        from = routing.source(token);
        there = from >= 0 && from < M && stage * 2 + block < blocks;
        chunk = out + (four / (TOKENS / 4) * stages + stage) * packed::chunk_bytes(TOKENS);
    }
};

// All lanes of a warp must call it.
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
    const float d_a = half_to_float(d), scale = __fmul_rn(d_a, D_FACTOR);
    if (!HAS_Z) {
        if (at.c == 0) ((float*)(at.chunk + TOKENS * 128))[at.block * TOKENS + row] = scale;
        return;
    }
    float codes[2] = {0.0f, 0.0f};  // sums of integers, exact in any order
    if (FORMAT::MINIMUM == Minimum::MEETS_CODES) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[h] = __fadd_rn(codes[h], q[4 * h + i]);
            codes[h] = __fadd_rn(codes[h], __shfl_xor_sync(0xFFFFFFFF, codes[h], 1));
            codes[h] = __fadd_rn(codes[h], __shfl_xor_sync(0xFFFFFFFF, codes[h], 2));
        }
    }
    if (at.c != 0) return;
#pragma unroll
    for (int h = 0; h < Z_GROUPS; ++h)
        ((float2*)(at.chunk + TOKENS * 128))[(at.block * Z_GROUPS + h) * TOKENS + row] = {
            scale, z_of<FORMAT>(d_a, half_to_float(s), Z_GROUPS == 2 ? codes[h] : __fadd_rn(codes[0], codes[1]))};
}

// Warp i of a grid of blocks [groups of four tokens, warps]: body(place) for its stages of its four tokens.
template <class Body>
__device__ __forceinline__ void for_places(uint8_t* out, int64_t M, int64_t blocks, int64_t stages, int64_t tokens,
                                           const Routing& routing, const Body& body) {
    wait_for_last_launch();  // its inputs, or the memory that it overwrites, may be in use until then
    let_next_launch_start();
    const int64_t fours = (tokens + TOKENS - 1) / TOKENS * (TOKENS / 4), warps = (int64_t)gridDim.y * (blockDim.x / 32);
    for (int64_t four = blockIdx.x; four < fours; four += gridDim.x)
        for (int64_t stage = (int64_t)blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32; stage < stages; stage += warps) {
            const Place at(out, four, stage, M, blocks, stages, routing);
            body(at, at.from * blocks + stage * 2 + at.block);
        }
}

extern "C" __global__ void tile(const Q8_1* __restrict__ x,  // (M, blocks)
                                uint8_t* __restrict__ out,   // (tiles of TOKENS, stages) chunks
                                int64_t M, int64_t blocks, int64_t stages ROUTING_PARAMETERS) {
    for_places(out, M, blocks, stages, ROUTING, [&](const Place& at, int64_t from) {
        const Q8_1* b = x + from;
        float q[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) q[j] = at.there ? (float)b->qs[j / 4 * 16 + at.c * 4 + j % 4] : 0.0f;
        write(at, q, at.there ? b->d : 0, at.there ? b->s : 0);
    });
}

extern "C" __global__ void quantize_tiled(const float* __restrict__ x,  // (M, blocks, 32)
                                          uint8_t* __restrict__ out,    // as above
                                          int64_t M, int64_t blocks, int64_t stages ROUTING_PARAMETERS) {
    for_places(out, M, blocks, stages, ROUTING, [&](const Place& at, int64_t from) {
        const float4* b = (const float4*)x + from * 8;
        float4 v[2] = {};
        if (at.there) v[0] = b[at.c], v[1] = b[4 + at.c];
        const Quantized block = quantized(v, at.c);
        write(at, block.q, float_to_half(block.d), float_to_half(block.s));
    });
}
