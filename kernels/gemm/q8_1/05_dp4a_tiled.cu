// 05 DP4A tiled: 03's shared memory and register tile with 04's instruction.
//
// What is new. 04 does four products per instruction, but each thread reads and unpacks its own rows: 54 bytes from the
// caches for 8 instructions. 03 shares, but needs one and a half instructions per product: a multiply-add, and an
// extraction for every two. Here a thread has 4 rows × 4 tokens of a tile of 64 × 64: for a slice it loads 16 times 16
// bytes from shared memory and issues 128 __dp4a for 512 products, so arithmetic is the bottleneck. Global memory is
// read as in 03.
//
// Besides the products, each output needs a term for each slice: the conversion of its sum and two or three float
// operations. Conversions run at an eighth to a quarter of the rate of additions; INTEGER_BASE avoids them.
#include "formats/format.cuh"

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                          const Q8_1* __restrict__ x,    // (M, K/32)
                                                          float* __restrict__ y,         // (M, N)
                                                          int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, ROWS = 64, TOKENS = 64, STEP = 4, ONES = 0x01010101;
    constexpr int APART = 16, EACH_ROW = ROWS / APART, EACH_TOKEN = TOKENS / APART;  // a thread's outputs are 16 apart
    constexpr int WORDS = sizeof(Q8_1) / 4;
    constexpr int GROUPS = Scales<FORMAT>::GROUPS;
    __shared__ uint4 wq[STEP][2][ROWS], xq[STEP][2][TOKENS];  // 16 codes each
    __shared__ float2 ds[STEP][TOKENS];                       // of the activations
    __shared__ Scales<FORMAT> scales[STEP][ROWS];

    const int tid = threadIdx.x, row = tid % APART, token = tid / APART;
    const int64_t slices = K / QK;
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS, n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS;
    float acc[EACH_TOKEN][EACH_ROW] = {};
    for (int64_t first = 0; first < slices; first += STEP) {
        const int count = slices - first < STEP ? (int)(slices - first) : STEP;
        for (int i = tid; i < ROWS * 4 * STEP; i += 256) {
            const int j = i % 4, r = i / 4 % ROWS, s = i / 4 / ROWS;
            if (s < count) {
                const int64_t n = n0 + r < N ? n0 + r : N - 1;
                const FORMAT& block = w[n * (K / FORMAT::VALUES) + (first + s) / SLICES];
                const int slice = (first + s) % SLICES;
                int low, high;
                block.codes4(slice, j, low, high);
                ((uint32_t*)&wq[s][0][r])[j] = low;
                ((uint32_t*)&wq[s][1][r])[j] = high;
                if (j == 0) scales[s][r].read(block, slice);
            }
        }
        for (int i = tid; i < TOKENS * STEP * WORDS; i += 256) {
            const int t = i / (STEP * WORDS), s = i / WORDS % STEP, word = i % WORDS - 1;
            if (s < count) {
                const int64_t m = m0 + t < M ? m0 + t : M - 1;
                const uint32_t loaded = load_word_4(x + m * slices + first + s, word + 1);
                if (word < 0) {
                    ds[s][t].x = half_to_float((uint16_t)loaded);
                    ds[s][t].y = half_to_float((uint16_t)(loaded >> 16));
                } else {
                    ((uint32_t*)&xq[s][word / 4][t])[word % 4] = loaded;
                }
            }
        }
        __syncthreads();
        for (int s = 0; s < count; ++s) {
            // sums of a group: both halves of the slice, or each alone
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                int sum[EACH_TOKEN][EACH_ROW], codes[EACH_TOKEN];
#pragma unroll
                for (int i = 0; i < EACH_TOKEN; ++i) {
                    codes[i] = INTEGER_BASE;
#pragma unroll
                    for (int j = 0; j < EACH_ROW; ++j) sum[i][j] = INTEGER_BASE;
                }
#pragma unroll
                for (int h = GROUPS == 2 ? g : 0; h < (GROUPS == 2 ? g + 1 : 2); ++h) {
                    uint4 b[EACH_TOKEN];
#pragma unroll
                    for (int i = 0; i < EACH_TOKEN; ++i) {
                        b[i] = xq[s][h][token + APART * i];
                        if (FORMAT::MINIMUM == Minimum::MEETS_CODES) {
                            codes[i] = __dp4a(ONES, (int)b[i].x, __dp4a(ONES, (int)b[i].y, codes[i]));
                            codes[i] = __dp4a(ONES, (int)b[i].z, __dp4a(ONES, (int)b[i].w, codes[i]));
                        }
                    }
#pragma unroll
                    for (int j = 0; j < EACH_ROW; ++j) {
                        const uint4 a = wq[s][h][row + APART * j];
#pragma unroll
                        for (int i = 0; i < EACH_TOKEN; ++i) {
                            sum[i][j] = __dp4a((int)a.x, (int)b[i].x, __dp4a((int)a.y, (int)b[i].y, sum[i][j]));
                            sum[i][j] = __dp4a((int)a.z, (int)b[i].z, __dp4a((int)a.w, (int)b[i].w, sum[i][j]));
                        }
                    }
                }
#pragma unroll
                for (int j = 0; j < EACH_ROW; ++j) {
                    const Scales<FORMAT> of_row = scales[s][row + APART * j];
#pragma unroll
                    for (int i = 0; i < EACH_TOKEN; ++i) {
                        const float2 of_token = ds[s][token + APART * i];
                        acc[i][j] = add_group<FORMAT>(acc[i][j], of_row.scale(g), of_row.minimum(g), of_token.x,
                                                      of_token.y, above_base(sum[i][j]), above_base(codes[i]));
                    }
                }
            }
        }
        __syncthreads();
    }
    const int rows_left = N - n0 < ROWS ? (int)(N - n0) : ROWS;
#pragma unroll
    for (int i = 0; i < EACH_TOKEN; ++i) {
        const int64_t m = m0 + token + APART * i;
        if (m >= M) continue;
        float* out = y + m * N + n0 + row;
#pragma unroll
        for (int j = 0; j < EACH_ROW; ++j)
            if (row + APART * j < rows_left) out[APART * j] = acc[i][j];
    }
}
