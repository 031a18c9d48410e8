// Adds the sums of parts of rows (split-K) to outputs: part after part, in ascending order. A part has as many sums as
// there are outputs, padded to a multiple of four.
#include "async.cuh"

__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

extern "C" __global__ void add_parts(const float4* __restrict__ sums,  // (parts, ⌈outputs / 4⌉)
                                     float* __restrict__ y,            // (outputs)
                                     int64_t parts, int64_t outputs) {
    wait_for_last_launch();
    let_next_launch_start();
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
