// 01 naive: one thread an output element, semantics q8_1. The measure of all that follow: y[m,n] = Σ_b accumulate(...),
// blocks in ascending k. Every thread reads its whole row of W and of X: nothing is shared, nothing is reused.
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
            int8_t q[QK];
            wb[b].unpack(q);
            int sum = 0;
            for (int h = 0; h < QK; h += 16)  // in halves, as the nibbles are unpacked
                for (int k = h; k < h + 16; ++k) sum += q[k] * xb[b].qs[k];
            acc = accumulate<FORMAT>(acc, wb[b].scale(), wb[b].minimum(), half_to_float(xb[b].d),
                                     half_to_float(xb[b].s), sum);
        }
        y[i] = acc;
    }
}
