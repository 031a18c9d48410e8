// 02 tiled: like 01, but a block of 16 × 16 threads first copies four slices (128 values) of its 16 tokens and its 16
// rows of W into shared memory.
//
// What is new. In 01 each output reads its row of W and its row of X: with Q4_0, 18 + 36 bytes for 32 products. It also
// unpacks W's codes for every token. Here each byte is read from global memory and unpacked once for 16 outputs:
// (16·18 + 16·36) / 256 = 3.4 bytes for 32 products, and each of the 256 threads unpacks 8 codes for 16·8 products.
//
// What remains. Each product takes two loads of a byte from shared memory and a multiply-add; 03 and 05 reduce that.
//
// Rows past the end repeat the last row: they are read and multiplied like the others, but not written.
#include "formats/format.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                       const Q8_1* __restrict__ x,    // (M, K/32)
                                                       float* __restrict__ y,         // (M, N)
                                                       int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, TOKENS = 16, ROWS = 16, STEP = 4;
    constexpr int WORDS = sizeof(Q8_1) / 4;  // 9, an odd stride: 16 rows use 16 banks
    __shared__ uint32_t wq[STEP][ROWS][WORDS];    // 8 words of codes
    __shared__ uint32_t xq[STEP][TOKENS][WORDS];  // d and s, 8 words of codes
    __shared__ Scales<FORMAT> scales[STEP][ROWS];

    const int tid = threadIdx.x, row = tid % ROWS, token = tid / ROWS;
    const int load_row = tid / 16, load_slice = tid / 4 % STEP, j = tid % 4;  // 16 threads read 4 slices of a row
    const int64_t slices = K / QK;
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS, n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS;
    const int64_t n = n0 + load_row < N ? n0 + load_row : N - 1;
    const FORMAT* wr = w + n * (K / FORMAT::VALUES);
    float acc = 0.0f;
    for (int64_t first = 0; first < slices; first += STEP) {
        const int64_t g = first + load_slice;
        if (g < slices) {
            const FORMAT& block = wr[g / SLICES];
            int low, high;
            block.codes4(g % SLICES, j, low, high);
            wq[load_slice][load_row][j] = low;
            wq[load_slice][load_row][j + 4] = high;
            if (j == 0) scales[load_slice][load_row].read(block, g % SLICES);
        }
        for (int i = tid; i < TOKENS * STEP * WORDS; i += 256) {
            const int t = i / (STEP * WORDS), word = i % (STEP * WORDS);
            if (first + word / WORDS < slices) {
                const int64_t m = m0 + t < M ? m0 + t : M - 1;
                xq[word / WORDS][t][word % WORDS] = load_word_4(x + m * slices + first, word);
            }
        }
        __syncthreads();
        for (int s = 0; s < STEP && first + s < slices; ++s) {
            const int8_t* a = (const int8_t*)wq[s][row];
            const int8_t* b = (const int8_t*)(xq[s][token] + 1);
            int sum[2] = {0, 0}, codes[2] = {0, 0};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int k = 16 * h; k < 16 * h + 16; ++k) {
                    sum[h] += a[k] * b[k];
                    if (FORMAT::MINIMUM == Minimum::MEETS_CODES) codes[h] += b[k];
                }
            }
            const uint32_t ds = xq[s][token][0];
            const float d_a = half_to_float((uint16_t)ds), s_a = half_to_float((uint16_t)(ds >> 16));
            acc = accumulate(acc, scales[s][row], d_a, s_a, sum, codes);
        }
        __syncthreads();
    }
    if (m0 + token < M && n0 + row < N) y[(m0 + token) * N + n0 + row] = acc;
}
