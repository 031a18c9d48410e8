// Mixtures of experts with few tokens: one launch of q8_1/10_decode.cu for all slots (a slot is the pair of a token and
// one of its experts), each with its expert's weights and the same number of thread blocks. pack/routing.cu, which 07
// needs, would be a separate launch, and so would tiling the activations. The bits are those of 10.
//
// An expert's weights are read again for each of its slots. A version that shared them between two slots of an expert
// was slower when an expert has less than one slot on average: 28.3 µs instead of 16.7 (128 experts, 8 per token, N =
// 768, K = 2048, 8 tokens, Q4_0, one H200).
#include "common.cuh"

#define EXPERTS

// The interface that 10 needs for a thread block's tokens: here, one slot.
struct Share {
    int64_t first_strip, slot, of_row;  // of_row: slots of a row of x
    static constexpr int tokens = 1;

    __device__ int64_t row_of_x(int) const { return slot / of_row; }
    __device__ int64_t row_of_y(int) const { return slot; }
};

#include "gemm/q8_1/10_decode.cu"
static_assert(TOKENS == 1, "a thread block has one slot");

template <bool VALUES>
__device__ __forceinline__ void run_slot(const uint8_t* w, const void* x, float* y, const int32_t* ids, int64_t N,
                                         int64_t blocks, int64_t apart, int64_t of_row, int64_t of_slot) {
    const Share share = {blockIdx.x % of_slot, blockIdx.x / of_slot, of_row};
    wait_for_last_launch();  // the routing is its result
    run<VALUES>(w + ids[share.slot] * apart * blocks * BLOCK, x, y, share, N, blocks, of_slot);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    gemm(const uint8_t* __restrict__ w,             // interleaved strips of all experts
         const Q8_1* __restrict__ x,                // (slots / of_row, K/32)
         float* __restrict__ y,                     // (slots, N)
         const int32_t* __restrict__ ids,           // (slots), their experts
         int64_t N, int64_t blocks, int64_t apart,  // strips from one expert to the next
         int64_t of_row, int64_t of_slot) {         // thread blocks of each slot
    run_slot<false>(w, x, y, ids, N, blocks, apart, of_row, of_slot);
}

// The same from values, of at most X_SLICES slices a row.
extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    gemm_values(const uint8_t* __restrict__ w, const float* __restrict__ x, float* __restrict__ y,
                const int32_t* __restrict__ ids, int64_t N, int64_t blocks, int64_t apart, int64_t of_row,
                int64_t of_slot) {
    run_slot<true>(w, x, y, ids, N, blocks, apart, of_row, of_slot);
}
