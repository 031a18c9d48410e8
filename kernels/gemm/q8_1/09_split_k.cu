// 09 split-K: 07 for products that are too small to fill the card. N = 4096 and 64 tokens are 32 tiles of 128 rows on 132
// multiprocessors, and each has to walk all of K. Rows are cut in parts of PART_STAGES · 64 values, whose sums are made at
// the same time and added afterwards.
//
// That is another order, and it is declared: a part in ascending k as 01 does, then the parts in ascending order. It
// depends on K alone, so the bits do not depend on how many tokens come along. The price: every part's sums are written
// and read once, 8 bytes an output and part.
#include "07_wgmma.cu"

extern "C" __global__ void add_parts(const float* __restrict__ sums,  // (parts, outputs)
                                     float* __restrict__ y,           // (outputs)
                                     int64_t parts, int64_t outputs) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < outputs; i += stride) {
        float sum = sums[i];
        for (int64_t p = 1; p < parts; ++p) sum = __fadd_rn(sum, sums[p * outputs + i]);
        y[i] = sum;
    }
}
