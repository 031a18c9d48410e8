// 01 naive: one thread for each output element, semantics f32 (W4A16/W8A16: activations stay float32). A weight is
// dequantized as llama.cpp's to_float does; then y[m,n] = Σ_k a·w by fused multiply-adds in ascending k.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                const float* __restrict__ x,   // (M, K)
                                float* __restrict__ y,         // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK;
    const int64_t nb = K / FORMAT::VALUES, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const FORMAT* wb = w + i % N * nb;
        const float* xb = x + i / N * K;
        float acc = 0.0f;
        for (int64_t b = 0; b < nb; ++b) {
            for (int s = 0; s < SLICES; ++s, xb += QK) {
                int8_t q[QK];
                wb[b].unpack(s, q);
                for (int h = 0; h < 2; ++h) {
                    const float d = wb[b].scale(s, h), m = wb[b].minimum(s, h);
                    for (int k = 16 * h; k < 16 * h + 16; ++k) acc = __fmaf_rn(xb[k], FORMAT::value(d, m, q[k]), acc);
                }
            }
        }
        y[i] = acc;
    }
}
