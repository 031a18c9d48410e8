// Dequantizes weights of any type to halves: the value of llama.cpp's to_float, rounded to nearest even. An engine runs
// this before cuBLAS if it has no kernel for a type; the benchmarks time the two together.
//
// Four threads share a slice of 32 values: thread j has x[4j…4j+3] and x[16+4j…], in the order of codes4. So a warp
// reads eight consecutive slices, and four threads store whole sectors of 32 bytes at a time.
#include "formats/format.cuh"

__device__ __forceinline__ uint2 four_halves(float d, float m, int codes) {
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = float_to_half(FORMAT::value(d, m, (int8_t)(codes >> 8 * i)));
    return {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
}

extern "C" __global__ void dequantize(const FORMAT* __restrict__ w,  // (slices·32/VALUES)
                                      uint2* __restrict__ y,         // (slices, 32) halves, four to an item
                                      int64_t slices) {
    constexpr int SLICES = FORMAT::VALUES / QK;
    const int64_t stride = (int64_t)gridDim.x * blockDim.x / 4;
    const int j = threadIdx.x % 4;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 4; i < slices; i += stride) {
        const FORMAT& block = w[i / SLICES];
        const int s = (int)(i % SLICES);
        int low, high;
        block.codes4(s, j, low, high);
        y[i * 8 + j] = four_halves(block.scale(s, 0), block.minimum(s, 0), low);
        y[i * 8 + 4 + j] = four_halves(block.scale(s, 1), block.minimum(s, 1), high);
    }
}
