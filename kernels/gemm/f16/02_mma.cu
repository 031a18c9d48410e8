// 02 mma: tensor cores. A warp computes 16 rows by TOKENS tokens; weights of any type become halves in registers,
// directly from the file's blocks, and 4 or 8 warps share the tokens' halves in shared memory.
//
// What is new. In 01 each output reads and unpacks its own row of W. Here a weight is unpacked once for TOKENS tokens,
// and a warp instruction computes 2048 products, with float32 sums that stay in place. The k of a fragment is any
// permutation of the values, the same for both operands: lane c takes the values 4c…4c+3 of each 16, in the order in
// which the types' headers give codes.
//
// What remains. Warps wait for the blocks of W that they read, for each other at barriers, and for the conversion of
// codes.
#include "formats/format.cuh"
#include "gemm/f16/mma.cuh"
#include "gemm/f16/words.cuh"

constexpr int WARPS = TOKENS == 8 ? 4 : 8, STEP = 128;
constexpr int STRIDE = STEP + 16;  // in halves: 16 lanes that read 8 bytes each use all banks

// Fragments of two rows of a slice, [16 values].
__device__ __forceinline__ void fragments(const FORMAT* const (&blocks)[2], int s, int c, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int codes[2];
        blocks[r]->codes4(s, c, codes[0], codes[1]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float d = blocks[r]->scale(s, h), m = blocks[r]->minimum(s, h);
            float values[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) values[i] = FORMAT::value(d, m, (int8_t)(codes[h] >> 8 * i));
            a[h][r] = two_halves(values[0], values[1]), a[h][r + 2] = two_halves(values[2], values[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) gemm(const FORMAT* __restrict__ w,    // (N, K/VALUES)
                                                              const uint16_t* __restrict__ x,  // halves (M, K)
                                                              float* __restrict__ y,           // (M, N)
                                                              int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, ROWS = 16 * WARPS;
    __shared__ __align__(16) uint16_t tokens[TOKENS][STRIDE];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS;
    const int64_t n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS + 16 * warp;
    const FORMAT* rows[2];  // rows past the end repeat the last one
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = w + (n0 + 8 * r + g < N ? n0 + 8 * r + g : N - 1) * (K / FORMAT::VALUES);
    float acc[TOKENS / 8][4] = {};

    for (int64_t first = 0; first < K; first += STEP) {
        const int count = K - first < STEP ? (int)(K - first) : STEP;
        for (int i = threadIdx.x; i < TOKENS * STEP / 8; i += 32 * WARPS) {
            const int t = i / (STEP / 8), k = i % (STEP / 8) * 8;
            if (k < count) *(uint4*)&tokens[t][k] = *(const uint4*)(x + (m0 + t < M ? m0 + t : M - 1) * K + first + k);
        }
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < count; k += QK) {
            const int64_t slice = (first + k) / QK;
            const FORMAT* const blocks[2] = {rows[0] + slice / SLICES, rows[1] + slice / SLICES};
            uint32_t a[2][4];
            fragments(blocks, (int)(slice % SLICES), c, a);
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int t = 0; t < TOKENS / 8; ++t) {
                    const uint2 two = *(const uint2*)&tokens[8 * t + g][k + 16 * h + 4 * c];
                    const uint32_t b[2] = {two.x, two.y};
                    mma(acc[t], a[h], b);
                }
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < TOKENS / 8; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int64_t n = n0 + g + 8 * (i / 2), m = m0 + 8 * t + 2 * c + i % 2;
            if (n < N && m < M) y[m * N + n] = acc[t][i];
        }
}
