// Activations → tiles of halves for `wgmma` (hopper.cuh, SharedMatrix): TOKENS of them and 64 values a chunk, whose
// rows of 128 bytes have the pieces of 16 bytes c at c ^ (token % 8). The values of a fragment's k lie where
// gemm/f16/halves.cuh has a weight's: of each 16 the words 4c, 4c+1 of four lanes c, then the words 4c+2, 4c+3. A
// thread writes 16 values of a token. Tokens past M and values past K are zero.
#include "common.cuh"

// body(token, from, to): the values `from`…, a multiple of 16, of a token into its words `to`; the second half lies in
// the piece beside it.
template <class Body>
__device__ __forceinline__ void for_pieces(uint8_t* out, int64_t M, int64_t K, int64_t stages, const Body& body) {
    const int64_t count = (M + TOKENS - 1) / TOKENS * TOKENS * stages * 4;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int step = (int)(i % 4), row = (int)(i / 4 % TOKENS);
        const int64_t stage = i / 4 / TOKENS % stages, tile = i / 4 / TOKENS / stages;
        const int64_t token = tile * TOKENS + row, from = stage * 64 + step * 16;
        uint32_t words[8] = {};  // two values each
        if (token < M && from < K) body(token * K + from, words);
        uint4* at = (uint4*)(out + (tile * stages + stage) * TOKENS * 128) + row * 8;
        at[(2 * step) ^ row % 8] = {words[0], words[2], words[4], words[6]};
        at[(2 * step + 1) ^ row % 8] = {words[1], words[3], words[5], words[7]};
    }
}

extern "C" __global__ void tile(const uint16_t* __restrict__ x,  // halves (M, K)
                                uint8_t* __restrict__ out,       // (tiles of TOKENS, stages) chunks
                                int64_t M, int64_t K, int64_t stages) {
    for_pieces(out, M, K, stages, [&](int64_t from, uint32_t (&words)[8]) {
        const uint4 first = *(const uint4*)(x + from), second = *(const uint4*)(x + from + 8);
        words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
        words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
    });
}

extern "C" __global__ void round_tiled(const float* __restrict__ x,  // (M, K)
                                       uint8_t* __restrict__ out,    // as above
                                       int64_t M, int64_t K, int64_t stages) {
    for_pieces(out, M, K, stages, [&](int64_t from, uint32_t (&words)[8]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 v = *(const float4*)(x + from + 4 * i);
            words[2 * i] = float_to_half(v.x) | (uint32_t)float_to_half(v.y) << 16;
            words[2 * i + 1] = float_to_half(v.z) | (uint32_t)float_to_half(v.w) << 16;
        }
    });
}
