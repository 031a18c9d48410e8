// Activations → tiles of halves for `wgmma` (hopper.cuh, SharedMatrix): a chunk has TOKENS tokens and 64 values, in
// rows of 128 bytes whose 16-byte pieces c are at c ^ (token % 8). The values of a fragment's k are in the same order
// as those of a weight in gemm/f16/halves.cuh: of each 16 the words 4c, 4c+1 of four lanes c, then the words 4c+2,
// 4c+3. So a lane reads four values, and two lanes exchange a word. Tokens past M and values past K are zero.
#include "async.cuh"
#include "formats/words.cuh"

constexpr int AT_ONCE = 4;  // stages

// body(from, words): the values from … from+3 of x into two words. A thread block processes 8 tokens and 8 stages at a
// time: its two halves have alternate stages, 16 lanes a token's 64 values.
template <class Body>
__device__ __forceinline__ void for_words(uint8_t* out, int64_t M, int64_t K, int64_t stages, const Body& body) {
    let_next_launch_start();
    wait_for_last_launch();  // its inputs, or the memory that it overwrites, may be in use until then
    const int lane = threadIdx.x % 16, half = threadIdx.x / 128, step = 2 * AT_ONCE;
    const int64_t token = (int64_t)blockIdx.x * 8 + threadIdx.x / 16 % 8, tile = token / TOKENS;
    const int row = (int)(token % TOKENS), piece = lane / 4 * 2 + lane % 2;
    const uint32_t to = row * 128 + (piece ^ row % 8) * 16 + lane % 4 / 2 * 8;
    for (int64_t first = (int64_t)blockIdx.y * step + half; first < stages; first += (int64_t)gridDim.y * step) {
        uint32_t words[AT_ONCE][2] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int64_t from = (first + 2 * i) * 64 + lane * 4;
            if (token < M && from < K) body(token * K + from, words[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const bool odd = lane & 1;
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, odd ? words[i][0] : words[i][1], 1);
            if (first + 2 * i < stages)
                *(uint2*)(out + (tile * stages + first + 2 * i) * TOKENS * 128 + to) =
                    odd ? uint2{other, words[i][1]} : uint2{words[i][0], other};
        }
    }
}

extern "C" __global__ void tile(const uint16_t* __restrict__ x,  // halves (M, K)
                                uint8_t* __restrict__ out,       // (tiles of TOKENS, stages) chunks
                                int64_t M, int64_t K, int64_t stages) {
    for_words(out, M, K, stages, [&](int64_t from, uint32_t (&words)[2]) {
        const uint2 two = *(const uint2*)(x + from);
        words[0] = two.x, words[1] = two.y;
    });
}

extern "C" __global__ void round_tiled(const float* __restrict__ x,  // (M, K)
                                       uint8_t* __restrict__ out,    // as above
                                       int64_t M, int64_t K, int64_t stages) {
    for_words(out, M, K, stages, [&](int64_t from, uint32_t (&words)[2]) {
        const float4 v = *(const float4*)(x + from);
        words[0] = two_halves(v.x, v.y), words[1] = two_halves(v.z, v.w);
    });
}
