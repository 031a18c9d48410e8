// 04 DP4A: like 01, with four products per instruction. A slice's codes are unpacked, four to a 32-bit word (two masks
// for eight 4-bit codes), and multiplied by __dp4a: 8 of these replace 32 multiply-adds. The integer sum is exact in
// any order, so the result has the bits of 01.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                const Q8_1* __restrict__ x,    // (M, K/32)
                                float* __restrict__ y,         // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK, ONES = 0x01010101;
    const int64_t nb = K / FORMAT::VALUES, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const FORMAT* wb = w + i % N * nb;
        const Q8_1* xb = x + i / N * nb * SLICES;
        float acc = 0.0f;
        for (int64_t b = 0; b < nb; ++b) {
            for (int s = 0; s < SLICES; ++s, ++xb) {
                int sum[2] = {0, 0}, codes[2] = {0, 0};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    int low, high;
                    wb[b].codes4(s, j, low, high);
                    const int x_low = (int)load_word_4(xb->qs, j), x_high = (int)load_word_4(xb->qs, j + 4);
                    sum[0] = __dp4a(low, x_low, sum[0]);
                    sum[1] = __dp4a(high, x_high, sum[1]);
                    if (FORMAT::MINIMUM == Minimum::MEETS_CODES) {
                        codes[0] = __dp4a(ONES, x_low, codes[0]);
                        codes[1] = __dp4a(ONES, x_high, codes[1]);
                    }
                }
                acc = accumulate(acc, wb[b], s, half_to_float(xb->d), half_to_float(xb->s), sum, codes);
            }
        }
        y[i] = acc;
    }
}
