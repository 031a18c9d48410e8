// Cooperative groups on the CPU (Programming Guide, "Cooperative Groups"): thread blocks, and tiles of a warp. Barriers
// of a grid or a cluster are not available: blocks run one after another.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cooperative_groups {

class thread_block {
  public:
    void sync() const { __syncthreads(); }
    static unsigned thread_rank() {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    static unsigned size() { return (unsigned)blockDim.count(); }
    static unsigned num_threads() { return size(); }
    static auto group_index() { return blockIdx; }
    static auto thread_index() { return threadIdx; }
    static auto group_dim() { return blockDim; }
    static auto dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

// The next SIZE lanes of a warp.
template <unsigned SIZE, class PARENT = void>
class thread_block_tile {
  public:
    static_assert(SIZE <= 32 && (SIZE & (SIZE - 1)) == 0, "on a CPU, a tile is a part of a warp");
    void sync() const { __syncwarp(mask()); }
    static constexpr unsigned size() { return SIZE; }
    static constexpr unsigned num_threads() { return SIZE; }
    static unsigned thread_rank() { return (unsigned)cuda_on_cpu::lane() % SIZE; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / SIZE; }
    static unsigned meta_group_size() { return (thread_block::size() + SIZE - 1) / SIZE; }
    template <class T>
    T shfl(T v, int lane) const { return __shfl_sync(mask(), v, lane, SIZE); }
    template <class T>
    T shfl_up(T v, unsigned delta) const { return __shfl_up_sync(mask(), v, delta, SIZE); }
    template <class T>
    T shfl_down(T v, unsigned delta) const { return __shfl_down_sync(mask(), v, delta, SIZE); }
    template <class T>
    T shfl_xor(T v, unsigned lanes) const { return __shfl_xor_sync(mask(), v, (int)lanes, SIZE); }
    int any(int predicate) const { return __any_sync(mask(), predicate); }
    int all(int predicate) const { return __all_sync(mask(), predicate); }
    unsigned ballot(int predicate) const { return __ballot_sync(mask(), predicate) >> first(); }
    template <class T>
    unsigned match_any(T value) const { return __match_any_sync(mask(), value) >> first(); }

  private:
    static unsigned first() { return (unsigned)cuda_on_cpu::lane() / SIZE * SIZE; }
    static unsigned mask() { return (SIZE == 32 ? ~0u : (1u << SIZE % 32) - 1) << first(); }
};
template <unsigned SIZE, class GROUP>
thread_block_tile<SIZE, GROUP> tiled_partition(const GROUP&) {
    return {};
}

template <class T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};
// Floats are added in the order of a butterfly from far to near lanes.
template <unsigned SIZE, class PARENT, class T, class OF>
T reduce(const thread_block_tile<SIZE, PARENT>& tile, T v, OF of) {
    for (unsigned lanes = SIZE / 2; lanes; lanes /= 2) v = of(v, tile.shfl_xor(v, lanes));
    return v;
}
template <class GROUP>
void sync(const GROUP& group) {
    group.sync();
}

namespace details {
template <class T>
struct no_grid {
    static_assert(sizeof(T) == 0, "a barrier of the whole grid is not available on a CPU: verify it with --host gpu");
};
}  // namespace details
struct grid_group {
    template <class T = int>
    void sync() const { details::no_grid<T>(); }
    static unsigned long long thread_rank() {
        const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
        return block * blockDim.count() + thread_block::thread_rank();
    }
    static unsigned long long size() { return gridDim.count() * blockDim.count(); }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
