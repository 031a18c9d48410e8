// Activations float32 → Q8_1: a warp quantizes eight blocks at a time and writes their 288 bytes 16 at a time.
#include "quantize/q8_1.cuh"

constexpr int WARPS = 8;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    quantize(const float* __restrict__ x,  // (n_blocks, 32)
             Q8_1* __restrict__ y,         // (n_blocks)
             int64_t n_blocks) {
    __shared__ uint4 staged[WARPS][18];  // of a warp, eight blocks
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % 4;
    const int64_t step = (int64_t)gridDim.x * WARPS * 8;
    for (int64_t first = ((int64_t)blockIdx.x * WARPS + warp) * 8; first < n_blocks; first += step) {
        const int64_t b = first + lane / 4;
        float4 v[2] = {};
        if (b < n_blocks) v[0] = ((const float4*)x)[b * 8 + c], v[1] = ((const float4*)x)[b * 8 + 4 + c];
        const Quantized block = quantized(v, c);
        uint32_t* words = (uint32_t*)staged[warp];
        uint32_t* to = words + lane / 4 * 9;
        to[1 + c] = four_bytes(block.q), to[5 + c] = four_bytes(block.q + 4);
        if (c == 0) to[0] = float_to_half(block.d) | (uint32_t)float_to_half(block.s) << 16;
        __syncwarp();
        if (first + 8 <= n_blocks) {
            if (lane < 18) ((uint4*)(y + first))[lane] = staged[warp][lane];
        } else {
            for (int i = lane; i < (n_blocks - first) * 9; i += 32) ((uint32_t*)(y + first))[i] = words[i];
        }
        __syncwarp();
    }
}
