// Q8_1 rows → tiled activations (packed.cuh): one warp a block of 32, lane k writes code k. 36 bytes in, 72 out.
#include "packed.cuh"

extern "C" __global__ void tile(const Q8_1* __restrict__ x,  // (M, blocks)
                                uint8_t* __restrict__ out,   // (tiles of TOKENS, stages) chunks
                                int64_t M, int64_t blocks, int64_t stages) {
    using namespace packed;
    const int64_t all = (M + TOKENS - 1) / TOKENS * TOKENS * stages * 2, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    const int lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < all; i += warps) {
        const int64_t token = i / (stages * 2), block = i % (stages * 2);
        const bool there = token < M && block < blocks;
        const Q8_1* b = x + token * blocks + block;
        uint8_t* to = out + (token / TOKENS * stages + block / 2) * chunk_bytes(TOKENS);
        const int row = (int)(token % TOKENS), at = (int)(block % 2) * 32 + place(lane);
        const float code = there ? __fmul_rn((float)b->qs[lane], lane < 16 ? 1.0f : SECOND_HALF) : 0.0f;
        ((uint16_t*)to)[row * 64 + ((at / 8 ^ row % 8) * 8 | at % 8)] = float_to_half(code);
        if (lane == 0) {
            const float d = there ? half_to_float(b->d) : 0.0f, s = there ? half_to_float(b->s) : 0.0f;
            ((float2*)(to + TOKENS * 128))[block % 2 * TOKENS + row] = {__fmul_rn(d, D_FACTOR), z_of(s)};
        }
    }
}
