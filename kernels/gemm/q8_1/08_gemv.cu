// 08 decode: a few tokens, whose product is a matter of reading W once. 2·M operations a weight of 4.5 bits leave every
// unit idle but memory, so the kernel is made to have as many bytes under way as it can, and the rest must keep up.
//
//   - Packed weights (packed.cuh): 16 bytes a lane and load, a warp's loads side by side, one block of 32 rows each.
//   - Sixteen warps share the 32 rows of a block and read different parts of K, all of it at once up to K = 4096: with
//     one warp a row group, N = 4096 would leave three of four schedulers without work and memory with few requests.
//   - But the order is 01's: an output's terms are added in ascending k. Only that addition is a chain, of one or two
//     operations a block. The terms are made by all warps, in any order, and put down in shared memory; then a warp a
//     token walks them, a lane a row.
//   - The four lanes that hold a row's codes add up their sums so that each ends with a row of its own: three shuffles
//     for four rows.
#include "packed.cuh"

constexpr int WARPS = 16, ROUND = TOKENS < 8 ? 8 / TOKENS : 1, QUEUE = WARPS * ROUND;  // blocks of a warp, of all, at a time

// The sums of four rows over four lanes; lane c of each four gets that of row c.
__device__ __forceinline__ int shared_out(const int (&v)[4], int c) {
    const int keep0 = c & 2 ? v[2] : v[0], keep1 = c & 2 ? v[3] : v[1];
    const int sum0 = keep0 + __shfl_xor_sync(0xFFFFFFFF, c & 2 ? v[0] : v[2], 2);
    const int sum1 = keep1 + __shfl_xor_sync(0xFFFFFFFF, c & 2 ? v[1] : v[3], 2);
    return (c & 1 ? sum1 : sum0) + __shfl_xor_sync(0xFFFFFFFF, c & 1 ? sum0 : sum1, 1);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    gemm(const uint8_t* __restrict__ w,  // packed weights
         const Q8_1* __restrict__ x,     // (M, blocks)
         float* __restrict__ y,          // (M, N)
         int64_t M, int64_t N, int64_t blocks) {
    using namespace packed;
    __shared__ float2 terms[QUEUE][TOKENS][32];             // factor and value of each row
    __shared__ uint16_t minima[HAS_M ? QUEUE : 1][32];
    __shared__ float sums[HAS_M ? QUEUE : 1][TOKENS];
    const int64_t padded = (blocks + 1) / 2 * 2, tile = blockIdx.x / 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % 4, part = blockIdx.x % 4, thread = part * 32 + lane;
    const int64_t first_token = (int64_t)blockIdx.y * TOKENS;
    const uint8_t* chunks = w + tile * padded * CHUNK;
    float acc = 0.0f;
    for (int64_t base = 0; base < blocks; base += QUEUE) {
        uint4 codes[ROUND][WORDS];
        uint32_t high[ROUND];
        uint16_t d[ROUND], m[ROUND];
#pragma unroll
        for (int i = 0; i < ROUND; ++i) {
            const int64_t b = base + i * WARPS + warp;
            const uint8_t* chunk = chunks + (b < blocks ? b : blocks - 1) * CHUNK;
#pragma unroll
            for (int j = 0; j < WORDS; ++j) codes[i][j] = ((const uint4*)chunk)[thread * WORDS + j];
            if (HAS_HIGH) high[i] = ((const uint32_t*)(chunk + HIGH_AT))[thread];
            d[i] = ((const uint16_t*)(chunk + D_AT))[thread];
            if (HAS_M) m[i] = ((const uint16_t*)(chunk + M_AT))[thread];
        }
#pragma unroll
        for (int i = 0; i < ROUND; ++i) {
            const int at = i * WARPS + warp;
            const int64_t b = base + at;
            if (b >= blocks) break;
            Part p;
            unpack(p, codes[i]);
            if (HAS_HIGH) p.high = high[i];
            uint32_t a[2][4];  // [t]: codes 4c… of rows r = 0, 1, then 16+4c…
            byte_fragments(p, 0, a[0]), byte_fragments(p, 1, a[1]);
            const float dw = half_to_float(d[i]);
            if (HAS_M) minima[HAS_M ? at : 0][lane] = m[i];
#pragma unroll
            for (int k = 0; k < TOKENS; ++k) {
                if (first_token + k >= M) break;
                const uint32_t* xb = (const uint32_t*)(x + (first_token + k) * blocks + b);
                const uint32_t ds = xb[0];
                const int x_low = (int)xb[1 + c], x_high = (int)xb[5 + c];
                int v[4];
#pragma unroll
                for (int row = 0; row < 4; ++row)
                    v[row] = __dp4a((int)a[row / 2][row % 2 + 2], x_high, __dp4a((int)a[row / 2][row % 2], x_low, 0));
                const float sum = (float)shared_out(v, c), da = half_to_float((uint16_t)ds);
                const float s = half_to_float((uint16_t)(ds >> 16));
                if (FORMAT::MINIMUM == Minimum::OFFSET) terms[at][k][lane] = {dw, __fmaf_rn(da, sum, z_of(s))};
                else terms[at][k][lane] = {__fmul_rn(dw, da), sum};
                if (HAS_M && lane == 0) sums[HAS_M ? at : 0][k] = s;
            }
        }
        __syncthreads();
        if (warp < TOKENS) {  // a warp a token, a lane a row: the declared order
            const int64_t left = blocks - base;
            const int count = left < QUEUE ? (int)left : QUEUE;
#pragma unroll 8
            for (int at = 0; at < count; ++at) {
                const float2 term = terms[at][warp][lane];
                acc = __fmaf_rn(term.x, term.y, acc);
                if (HAS_M) acc = __fmaf_rn(half_to_float(minima[HAS_M ? at : 0][lane]), sums[HAS_M ? at : 0][warp], acc);
            }
        }
        __syncthreads();
    }
    const int64_t n = tile * ROWS + 64 * (c / 2) + 16 * part + 8 * (c % 2) + lane / 4;
    if (warp < TOKENS && first_token + warp < M && n < N) y[(first_token + warp) * N + n] = acc;
}
