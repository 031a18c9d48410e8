// 03 vectorized: as 02, but a thread computes 8 rows × 4 tokens of a tile of 128 × 64 and loads four floats at a time.
//
// What is new. In 02 each product loads two floats from shared memory. Here a thread loads 8 + 4 floats for 32
// products, in 3 loads of 16 bytes: 1 load for 11 products, so most of the issued instructions are multiply-adds.
// Activations are also loaded from global memory 16 bytes at a time: rows of K floats, K a multiple of 32, start at
// multiples of 128 bytes. A tile reads (128·18 + 64·128) / 8192 = 1.3 bytes of global memory for 32 products of Q4_0, a
// seventh of 02.
//
// What alignment prevents. Blocks of W start at multiples of 2 or 4 bytes, so they are read as in 02.
//
// Shared memory is transposed, k first, so that the floats of neighbouring rows are adjacent. Each of its rows is
// 4 floats longer than the tile: when 4 lanes write 4 values of k of 8 rows, at most two lanes use the same bank.
#include "formats/format.cuh"

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                          const float* __restrict__ x,   // (M, K)
                                                          float* __restrict__ y,         // (M, N)
                                                          int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, ROWS = 128, TOKENS = 64;
    __shared__ float4 wv[QK][ROWS / 4 + 1], xv[QK][TOKENS / 4 + 1];

    const int tid = threadIdx.x, row = tid % 16, token = tid / 16;  // rows 4·row … and 64 further, tokens 4·token …
    const int64_t slices = K / QK;
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS, n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS;
    float acc[4][8] = {};  // of token i and row j
    for (int64_t g = 0; g < slices; ++g) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int r = tid / 4 + 64 * part, j = tid % 4, s = g % SLICES;
            const int64_t n = n0 + r < N ? n0 + r : N - 1;
            const FORMAT& block = w[n * (K / FORMAT::VALUES) + g / SLICES];
            int codes[2];
            block.codes4(s, j, codes[0], codes[1]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float d = block.scale(s, h), m = block.minimum(s, h);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    ((float*)wv[16 * h + 4 * j + i])[r] = FORMAT::value(d, m, (int8_t)(codes[h] >> 8 * i));
            }
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int t = tid / 4, k = 4 * (tid % 4 + 4 * part);
            const int64_t m = m0 + t < M ? m0 + t : M - 1;
            const float4 four = *(const float4*)(x + m * K + g * QK + k);
            ((float*)xv[k])[t] = four.x, ((float*)xv[k + 1])[t] = four.y;
            ((float*)xv[k + 2])[t] = four.z, ((float*)xv[k + 3])[t] = four.w;
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < QK; ++k) {
            const float4 a = wv[k][row], b = wv[k][row + 16], c = xv[k][token];
            const float of_rows[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, of_tokens[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] = __fmaf_rn(of_tokens[i], of_rows[j], acc[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int64_t m = m0 + 4 * token + i;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int64_t n = n0 + 4 * row + j % 4 + j / 4 * 64;
            if (m < M && n < N) y[m * N + n] = acc[i][j];
        }
    }
}
