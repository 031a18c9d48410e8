// The tokens of each expert, on the GPU: the slots of all tokens (token m's t-th expert is slot m·top_k + t) sorted by
// expert, each expert's slots padded to whole tiles of TOKENS. A thread block has one expert. All blocks count the
// slots of all experts, so that none waits for another: there are few slots.
//
//     slots[capacity]             by expert, in ascending order; padding is `used`, which is no slot
//     experts[capacity / TOKENS]  the expert of a tile; -1 after the last one
#include "async.cuh"

constexpr int MOST_EXPERTS = 1024;

extern "C" __global__ void route(const int32_t* __restrict__ ids,  // (used), of slots
                                 int32_t* __restrict__ slots, int32_t* __restrict__ experts, int64_t used,
                                 int64_t capacity) {
    __shared__ int counts[MOST_EXPERTS];
    __shared__ int begin;
    const int expert = blockIdx.x, all = gridDim.x, lane = threadIdx.x;
    for (int e = threadIdx.x; e < all; e += blockDim.x) counts[e] = 0;
    wait_for_last_launch();
    let_next_launch_start();
    __syncthreads();
    for (int64_t i = threadIdx.x; i < used; i += blockDim.x) atomicAdd(&counts[ids[i]], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        begin = 0;
        for (int e = 0; e < expert; ++e) begin += (counts[e] + TOKENS - 1) / TOKENS * TOKENS;
    }
    __syncthreads();
    const int count = counts[expert], end = begin + (count + TOKENS - 1) / TOKENS * TOKENS;
    for (int i = begin + count + threadIdx.x; i < end; i += blockDim.x) slots[i] = (int)used;
    for (int i = begin / TOKENS + threadIdx.x; i < end / TOKENS; i += blockDim.x) experts[i] = expert;
    if (expert == all - 1) {
        for (int64_t i = end + threadIdx.x; i < capacity; i += blockDim.x) slots[i] = (int)used;
        for (int64_t i = end / TOKENS + threadIdx.x; i < capacity / TOKENS; i += blockDim.x) experts[i] = -1;
    }
    if (threadIdx.x >= 32) return;
    int at = begin;
    for (int64_t first = 0; first < used; first += 32) {  // a warp keeps the order
        const bool mine = first + lane < used && ids[first + lane] == expert;
        const uint32_t of_warp = __ballot_sync(0xFFFFFFFF, mine);
        if (mine) slots[at + __popc(of_warp & ((1u << lane) - 1))] = (int)(first + lane);
        at += __popc(of_warp);
    }
}
