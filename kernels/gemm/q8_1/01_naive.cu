// 01 naive: one thread for each output element, semantics q8_1. It is the reference for all later steps: y[m,n] = Σ
// accumulate(...) over slices of 32 in ascending k. Every thread reads its own rows of W and X completely.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                const Q8_1* __restrict__ x,    // (M, K/32)
                                float* __restrict__ y,         // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK;
    const int64_t nb = K / FORMAT::VALUES, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const FORMAT* wb = w + i % N * nb;
        const Q8_1* xb = x + i / N * nb * SLICES;
        float acc = 0.0f;
        for (int64_t b = 0; b < nb; ++b) {
            for (int s = 0; s < SLICES; ++s, ++xb) {
                int8_t q[QK];
                wb[b].unpack(s, q);
                int sum[2] = {0, 0}, codes[2] = {0, 0};
                for (int h = 0; h < 2; ++h) {
                    for (int k = 16 * h; k < 16 * h + 16; ++k) sum[h] += q[k] * xb->qs[k];
                    if (FORMAT::MINIMUM == Minimum::MEETS_CODES)
                        for (int k = 16 * h; k < 16 * h + 16; ++k) codes[h] += xb->qs[k];
                }
                acc = accumulate(acc, wb[b], s, half_to_float(xb->d), half_to_float(xb->s), sum, codes);
            }
        }
        y[i] = acc;
    }
}
