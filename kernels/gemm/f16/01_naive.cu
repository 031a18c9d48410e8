// 01 naive: one thread computes one output. Weights and activations are halves, products are exact in float32, and sums
// are rounded to float32, in ascending k.
//
//     w[k] = half(d·q + m)        y[m][n] = Σ_k w[n][k]·x[m][k]
//
// What remains. As in f32/01_naive.cu, every thread reads and unpacks its own row of W.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w,    // (N, K/VALUES)
                                const uint16_t* __restrict__ x,  // halves (M, K)
                                float* __restrict__ y,           // (M, N)
                                int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += (int64_t)gridDim.x * blockDim.x) {
        const FORMAT* row = w + i % N * (K / FORMAT::VALUES);
        const uint16_t* token = x + i / N * K;
        float acc = 0.0f;
        for (int64_t g = 0; g < K / QK; ++g) {
            const FORMAT& block = row[g / SLICES];
            const int s = g % SLICES;
            int8_t q[QK];
            block.unpack(s, q);
            for (int k = 0; k < QK; ++k) {
                const float value = FORMAT::value(block.scale(s, k / 16), block.minimum(s, k / 16), q[k]);
                acc = __fmaf_rn(half_to_float(float_to_half(value)), half_to_float(token[g * QK + k]), acc);
            }
        }
        y[i] = acc;
    }
}
