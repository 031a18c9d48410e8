// 04 DP4A: as 01, four products an instruction. A block's codes are unpacked four to a 32-bit word (two masks for eight
// 4-bit codes) and multiplied by __dp4a: 8 of them replace 32 multiply-adds. The integer sum is exact in any order, so
// the result has the bits of 01.
#include "formats/all.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w,  // (N, K/32)
                                const Q8_1* __restrict__ x,    // (M, K/32)
                                float* __restrict__ y,         // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    const int64_t nb = K / QK, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const FORMAT* wb = w + i % N * nb;
        const Q8_1* xb = x + i / N * nb;
        float acc = 0.0f;
        for (int64_t b = 0; b < nb; ++b) {
            int sum = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int low, high;
                wb[b].codes4(j, low, high);
                sum = __dp4a(low, (int)load_word_4(xb[b].qs, j), sum);
                sum = __dp4a(high, (int)load_word_4(xb[b].qs, j + 4), sum);
            }
            acc = accumulate<FORMAT>(acc, wb[b].scale(), wb[b].minimum(), half_to_float(xb[b].d),
                                     half_to_float(xb[b].s), sum);
        }
        y[i] = acc;
    }
}
