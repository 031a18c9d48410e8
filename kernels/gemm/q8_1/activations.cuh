// A few tokens of x into shared memory, for 08, 10 and 11: Q8_1 blocks unchanged, or values that are quantized here.
// That takes the time of reading x and of some 150 instructions for eight values, again in each thread block: 1.8 of
// 8.2 µs for four tokens of Q4_0 and N = 4096 (K = 4096, H100, step 08), and 3.1 of 11.6 for eight tokens (step 11). So
// the thread blocks of a cluster quantize a share each, and store it in all of them.
#pragma once
#include "../../cluster.cuh"
#include "quantize/q8_1.cuh"

// A lane's part of 32 values of x: codes of the values 4c…4c+3 and 16+4c…16+4c+3, the scales as halves; if requested,
// sums of the codes 0…15 and 16…31.
struct PartOfX {
    uint32_t low, high;
    uint16_t d, s;
    int low_sum, high_sum;

    __device__ __forceinline__ float scale() const { return half_to_float(d); }
    __device__ __forceinline__ float sum() const { return half_to_float(s); }
};

// The index of 32 values in x, in blocks of 32 (negative: none, they are zero), and their position in shared memory.
struct PlaceOfX {
    int64_t from;
    int to;
};

// The address in a block that shares x with this one of what is at p here.
template <bool VALUES>
struct Sharer {
    int block;

    template <class T>
    __device__ __forceinline__ T* operator()(T* p) const {
        return Sharers<VALUES ? CLUSTER : 1>::in(p, block);
    }
};

// The i-th of `count` blocks of 32 values, for this cluster: clusters begin at different ones, or all would wait for
// the same one.
template <bool VALUES>
__device__ __forceinline__ int turned(int i, int count) {
    using Cluster = Sharers<VALUES ? CLUSTER : 1>;
    const int at = i + (int)(blockIdx.x / Cluster::SHARES % 32) * count / 32;
    return at < count ? at : at - count;
}

// All threads of the block process `blocks` times 32 values; four lanes share 32, and each requests its next part
// before it quantizes one. More at once are no faster: this code runs once per launch, and longer code takes longer to
// fetch.
//
//   place(i)                     PlaceOfX of block i, also for i past the last
//   store(in, to, c, part)       stores lane c's part in one Sharer
template <bool VALUES, bool WITH_SUMS, int ALL_THREADS, class Place, class Store>
__device__ __forceinline__ void take_x(const void* x, int blocks, const Place& place, const Store& store) {
    using Cluster = Sharers<VALUES ? CLUSTER : 1>;
    constexpr int APART = Cluster::SHARES * ALL_THREADS;
    const int c = threadIdx.x % 4, all = blocks * 4;
    float4 next_values[2] = {};
    PartOfX next = {};
    int next_to = 0;
    const auto request = [&](int i) {
        if (i >= all) return;
        const PlaceOfX found = place(i / 4);
        next_to = found.to, next_values[0] = next_values[1] = {}, next = {};
        if (found.from < 0) return;
        if (VALUES) {
            const float4* from = (const float4*)x + found.from * 8 + c;
            next_values[0] = from[0], next_values[1] = from[4];
        } else {
            const uint32_t* from = (const uint32_t*)((const Q8_1*)x + found.from);
            const uint32_t ds = from[0];
            next = {from[1 + c], from[5 + c], (uint16_t)ds, (uint16_t)(ds >> 16), 0, 0};
        }
    };
    for (int share = Cluster::first_share(); share <= Cluster::last_share(); ++share) {
        const int first = share * ALL_THREADS + threadIdx.x;
        request(first);
#pragma unroll 1
        for (int i = first; i / 32 * 32 < all; i += APART) {
            const float4 values[2] = {next_values[0], next_values[1]};
            PartOfX p = next;
            const int to = next_to;
            request(i + APART);
            if (VALUES) {
                const Quantized q = quantized(values, c);
                p = {four_bytes(q.q), four_bytes(q.q + 4), float_to_half(q.d), float_to_half(q.s), 0, 0};
            }
            if (WITH_SUMS) {
                p.low_sum = __dp4a((int)p.low, 0x01010101, 0), p.high_sum = __dp4a((int)p.high, 0x01010101, 0);
#pragma unroll
                for (int apart = 1; apart <= 2; apart *= 2) {
                    p.low_sum += __shfl_xor_sync(0xFFFFFFFF, p.low_sum, apart);
                    p.high_sum += __shfl_xor_sync(0xFFFFFFFF, p.high_sum, apart);
                }
            }
            if (i >= all) break;
#pragma unroll
            for (int block = 0; block < Cluster::COPIES; ++block) store(Sharer<VALUES>{block}, to, c, p);
        }
    }
}
