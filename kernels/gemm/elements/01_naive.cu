// 01 naive for weights that are not quantized (semantics f16, bf16, f32): one thread for each output element,
// y[m,n] = Σ_k round(a)·w by fused multiply-adds in ascending k. K may be any number.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const ELEMENT* __restrict__ w,  // (N, K)
                                const float* __restrict__ x,    // (M, K)
                                float* __restrict__ y,          // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const ELEMENT* wr = w + i % N * K;
        const float* xr = x + i / N * K;
        float acc = 0.0f;
        for (int64_t k = 0; k < K; ++k) acc = __fmaf_rn(ELEMENT::round(xr[k]), wr[k].value(), acc);
        y[i] = acc;
    }
}
