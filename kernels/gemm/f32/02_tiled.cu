// 02 tiled: like 01, but a block of 16 × 16 threads first copies four slices (128 values) of its 16 tokens and its 16
// rows of W into shared memory, with the values of W already dequantized.
//
// What is new. In 01 each output reads its row of W and its row of X (with Q4_0, 18 + 128 bytes for 32 products) and
// dequantizes its own row of W: each product includes an unpacking, a conversion and a multiplication. Here each byte
// is read from global memory, and each weight is dequantized, once for 16 outputs: (16·18 + 16·128) / 256 = 9.1 bytes
// for 32 products.
//
// What remains. A product takes two loads from shared memory; 03 reduces that.
//
// Rows past the end repeat the last row: they are read and multiplied like the others, but not written.
#include "formats/format.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                       const float* __restrict__ x,   // (M, K)
                                                       float* __restrict__ y,         // (M, N)
                                                       int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, TOKENS = 16, ROWS = 16, STEP = 128;
    __shared__ float wv[ROWS][STEP + 1], xv[TOKENS][STEP + 1];  // an odd stride: 16 rows use 16 banks

    const int tid = threadIdx.x, row = tid % ROWS, token = tid / ROWS;
    const int load_row = tid / 16, load_slice = tid / 4 % 4, j = tid % 4;  // 16 threads read 4 slices of a row
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS, n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS;
    const int64_t n = n0 + load_row < N ? n0 + load_row : N - 1;
    const FORMAT* wr = w + n * (K / FORMAT::VALUES);
    float acc = 0.0f;
    for (int64_t first = 0; first < K; first += STEP) {
        const int count = K - first < STEP ? (int)(K - first) : STEP;
        if (QK * load_slice < count) {
            const int64_t g = first / QK + load_slice;
            const FORMAT& block = wr[g / SLICES];
            const int s = g % SLICES;
            int codes[2];
            block.codes4(s, j, codes[0], codes[1]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float d = block.scale(s, h), m = block.minimum(s, h);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wv[load_row][QK * load_slice + 16 * h + 4 * j + i] =
                        FORMAT::value(d, m, (int8_t)(codes[h] >> 8 * i));
            }
        }
        for (int i = tid; i < TOKENS * STEP; i += 256) {
            const int t = i / STEP, k = i % STEP;
            const int64_t m = m0 + t < M ? m0 + t : M - 1;
            if (k < count) xv[t][k] = x[m * K + first + k];
        }
        __syncthreads();
        for (int k = 0; k < count; ++k) acc = __fmaf_rn(xv[token][k], wv[row][k], acc);
        __syncthreads();
    }
    if (m0 + token < M && n0 + row < N) y[(m0 + token) * N + n0 + row] = acc;
}
