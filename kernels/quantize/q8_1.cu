// Activations float32 → Q8_1, the quantizer of semantics q8_1 (llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_q8_1):
// d = max|x|/127, q = round-half-away(x/d) with d before its rounding to half, s = half(Σ x) of the raw values.
//
// One warp a block of 32: lane i holds x[i], two butterfly reductions give max|x| and Σx. The order of the sum is part
// of the semantics (distance 16, 8, 4, 2, 1). Reads and writes are coalesced: 128 bytes in, 36 bytes out.
//
// Beyond llama.cpp, so that every input has defined codes: NaN and values over a zero d give code 0, and codes are
// clamped to ±127 (only a subnormal d can need it).
#include "common.cuh"

extern "C" __global__ void quantize(const float* __restrict__ x,  // (n_blocks, 32)
                                    Q8_1* __restrict__ y,         // (n_blocks)
                                    int64_t n_blocks) {
    const int lane = threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t b = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; b < n_blocks; b += warps) {
        const float v = x[b * QK + lane];
        float amax = fabsf(v), sum = v;
        for (int distance = 16; distance > 0; distance /= 2) {
            amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFF, amax, distance));
            sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, distance));
        }
        const float d = __fdiv_rn(amax, 127.0f);
        const float q = d > 0.0f ? roundf(__fdiv_rn(v, d)) : 0.0f;
        y[b].qs[lane] = q == q ? (int8_t)fminf(fmaxf(q, -127.0f), 127.0f) : (int8_t)0;
        if (lane == 0) {
            y[b].d = float_to_half(d);
            y[b].s = float_to_half(sum);
        }
    }
}
