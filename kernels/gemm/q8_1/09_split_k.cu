// 09 split-K: 07 for products that are too small to fill the GPU. N = 4096 and 64 tokens make 32 tiles of 128 rows on
// 132 multiprocessors, and each tile needs all of K. So rows are split into parts of PART_STAGES · 64 values, which are
// summed at the same time and added afterwards. With few tokens a block waits more than it computes, so three or four
// blocks of one warpgroup share a multiprocessor.
//
// The order differs, and it is declared: each part in ascending k as in 01, then the parts in ascending order. It
// depends only on K, so the bits do not depend on the number of tokens. The cost: the sums of every part are written
// and read once, 8 bytes for each output and part: 2 of 16 µs for 64 tokens and N = 4096. A version without the second
// kernel, in which the last block of a tile to finish adds the parts, took 20 µs.
#include "07_wgmma.cu"

__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

extern "C" __global__ void add_parts(const float4* __restrict__ sums,  // (parts, ⌈outputs / 4⌉)
                                     float* __restrict__ y,            // (outputs)
                                     int64_t parts, int64_t outputs) {
    wait_for_last_launch();
    const int64_t fours = (outputs + 3) / 4, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += stride) {
        if (4 * i + 4 <= outputs) {
            float4 sum = sums[i];
#pragma unroll 4
            for (int64_t p = 1; p < parts; ++p) sum = added(sum, sums[p * fours + i]);
            ((float4*)y)[i] = sum;
        } else {  // the rest of the last four is unwritten
            for (int64_t j = 4 * i; j < outputs; ++j) {
                float sum = ((const float*)sums)[j];
                for (int64_t p = 1; p < parts; ++p) sum = __fadd_rn(sum, ((const float*)(sums + p * fours))[j]);
                y[j] = sum;
            }
        }
    }
}
