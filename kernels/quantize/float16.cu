// Activations rounded to half, to nearest even; past 65504 infinite.
#include "common.cuh"

extern "C" __global__ void quantize(const float* __restrict__ x, uint16_t* __restrict__ out, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        out[i] = float_to_half(x[i]);
}
