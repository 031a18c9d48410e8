// 03 vectorized: like 02, but a thread computes 4 × 4 outputs of a tile of 64 tokens × 64 rows and reads 16 codes from
// shared memory at a time.
//
// What is new. In 02 each product loads two bytes from shared memory. Here a thread loads 16 codes of each of 4 rows
// and of 4 tokens, in 8 loads of 16 bytes, for 256 products: 1 load for 32 products, where 02 needs 64. It extracts the
// bytes from words in registers, 8 for 16 multiply-adds. A tile reads (64·18 + 64·36) / 4096 = 0.8 bytes of global
// memory for 32 products of Q4_0, a quarter of 02.
//
// What alignment allows. Loads of 16 bytes are possible only in shared memory, whose layout is free. In global memory
// an activation block has 36 bytes and starts at a multiple of 4. So 32 lanes load adjacent words, which takes as many
// transactions as wider loads would. Blocks of W are aligned to words (Q4_1, Q5_1) or half words (Q4_0, Q5_0, Q8_0).
//
// Shared memory holds a slice as two planes of 16 codes per row, so 8 lanes that read 8 rows use 32 different banks.
#include "formats/format.cuh"

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                       const Q8_1* __restrict__ x,    // (M, K/32)
                                                       float* __restrict__ y,         // (M, N)
                                                       int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, TILE = 64, STEP = 2, EACH = 4, APART = TILE / EACH;
    constexpr int WORDS = sizeof(Q8_1) / 4;
    __shared__ uint4 wq[STEP][2][TILE], xq[STEP][2][TILE];  // 16 codes each
    __shared__ uint32_t ds[STEP][TILE];                     // d and s of the activations
    __shared__ Scales<FORMAT> scales[STEP][TILE];

    const int tid = threadIdx.x, row = tid % APART, token = tid / APART;  // and those at multiples of 16 from it
    const int64_t slices = K / QK;
    const uint32_t tiles_m = (uint32_t)((M + TILE - 1) / TILE);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TILE, n0 = (int64_t)(blockIdx.x / tiles_m) * TILE;
    const int64_t n = n0 + tid / 4 < N ? n0 + tid / 4 : N - 1;
    const FORMAT* wr = w + n * (K / FORMAT::VALUES);
    float acc[EACH][EACH] = {};  // of token i and row j
    for (int64_t first = 0; first < slices; first += STEP) {
        const int count = slices - first < STEP ? (int)(slices - first) : STEP;
        for (int s = 0; s < count; ++s) {
            const FORMAT& block = wr[(first + s) / SLICES];
            const int slice = (first + s) % SLICES, j = tid % 4;
            int low, high;
            block.codes4(slice, j, low, high);
            ((uint32_t*)&wq[s][0][tid / 4])[j] = low;
            ((uint32_t*)&wq[s][1][tid / 4])[j] = high;
            if (j == 0) scales[s][tid / 4].read(block, slice);
        }
        for (int i = tid; i < TILE * STEP * WORDS; i += 256) {
            const int t = i / (STEP * WORDS), s = i / WORDS % STEP, word = i % WORDS - 1;
            if (s < count) {
                const int64_t m = m0 + t < M ? m0 + t : M - 1;
                const uint32_t loaded = load_word_4(x + m * slices + first + s, word + 1);
                if (word < 0) ds[s][t] = loaded;
                else ((uint32_t*)&xq[s][word / 4][t])[word % 4] = loaded;
            }
        }
        __syncthreads();
        for (int s = 0; s < count; ++s) {
            int sum[EACH][EACH][2] = {}, codes[EACH][2] = {};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t a[EACH][4], b[EACH][4];
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    const uint4 wide = wq[s][h][row + APART * i], tall = xq[s][h][token + APART * i];
                    a[i][0] = wide.x, a[i][1] = wide.y, a[i][2] = wide.z, a[i][3] = wide.w;
                    b[i][0] = tall.x, b[i][1] = tall.y, b[i][2] = tall.z, b[i][3] = tall.w;
                }
#pragma unroll
                for (int k = 0; k < 16; ++k) {
                    int qa[EACH];
#pragma unroll
                    for (int j = 0; j < EACH; ++j) qa[j] = (int8_t)(a[j][k / 4] >> k % 4 * 8);
#pragma unroll
                    for (int i = 0; i < EACH; ++i) {
                        const int qb = (int8_t)(b[i][k / 4] >> k % 4 * 8);
#pragma unroll
                        for (int j = 0; j < EACH; ++j) sum[i][j][h] += qa[j] * qb;
                        if (FORMAT::MINIMUM == Minimum::MEETS_CODES) codes[i][h] += qb;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const uint32_t both = ds[s][token + APART * i];
                const float d_a = half_to_float((uint16_t)both), s_a = half_to_float((uint16_t)(both >> 16));
#pragma unroll
                for (int j = 0; j < EACH; ++j)
                    acc[i][j] = accumulate(acc[i][j], scales[s][row + APART * j], d_a, s_a, sum[i][j], codes[i]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int64_t m = m0 + token + APART * i;
#pragma unroll
        for (int j = 0; j < EACH; ++j)
            if (m < M && n0 + row + APART * j < N) y[m * N + n0 + row + APART * j] = acc[i][j];
    }
}
