// 03 wgmma, for Hopper (sm_90a): like 02, but no warp waits for operands, and the tensor cores accumulate the sums.
//
// What is new. Sums of halves need nothing between one product and the next: the instruction stream consists of the
// conversion of codes to halves, and four products per stage.
//
//   - Weights are packed once and activations are tiled (pack/halves.cu, pack/half_activations.cu). A producer warp
//     keeps a ring of slots filled by bulk copies; consumers release slots by barriers in shared memory.
//   - A warpgroup multiplies 64 rows by up to 256 tokens, so a weight is unpacked once for all of them.
//   - With few tokens, K_GROUPS warpgroups share a tile: each takes one stage of a slot, and their sums are added at
//     the end in the order of the groups.
//   - A thread block computes one tile after another, so that the operands of the next one arrive while outputs are
//     written.
//   - With few rows and tokens, the tiles do not fill the GPU. Then rows are also split into parts: a thread block has
//     one tile of a part, and add_parts.cu adds the parts. N = 4096 makes 64 tiles for 132 multiprocessors; two parts
//     take 12.8 µs instead of 14.4 (Q4_K, 64 tokens, one H200), four and more are no faster.
//   - Launches overlap: the ring is filled with weights while the activations of the same product are prepared. 14.3 µs
//     instead of 15.7 (Q4_K, N = 4096, 64 tokens), 26.7 instead of 28.7 (N = 14336).
//   - Rows are packed such that a thread has two neighbours, so outputs are written in pairs (pipeline.cuh).
//
// PIPELINED: the fragments of the next stage are prepared while products are computed. This takes 16 more registers. It
// is faster with tiles of 128 tokens, and with 256 if scales are float32: a weight then takes twice the instructions
// (halves.cuh).
//
// What remains. With few tokens it is not memory-bound: Q8_0, with twice the bytes, takes as long as Q4_0. For Q4_0 a
// warp needs 118 instructions for 64 values of its 16 rows, and 69 of them unpack codes. With thousands of tokens the
// power of the GPU is the limit, and rounding float32 activations takes 25 of 219 µs (4096 tokens, N = 4096, Q4_0).
// Slower variants: four warpgroups of 128 tokens, whose registers hold the fragments of half a stage (38.0 µs instead
// of 33.1, 512 tokens, N = 4096, Q8_0), and other orders of the tiles.
#include "halves.cuh"

#define WEIGHT_CHUNK halves::CHUNK
#include "pipeline.cuh"

constexpr bool ONE_TILE = IN_PARTS;  // of a thread block

extern "C" __global__ void __launch_bounds__(pipeline::THREADS, CTAS) gemm(
    const uint8_t* __restrict__ w,  // (tiles of 64 rows, stages) chunks
    const uint8_t* __restrict__ x,  // (tiles of TOKENS, stages, TOKENS, 64) halves
    float* __restrict__ y,          // (M, N), of several parts (parts, M·N, to a multiple of 4)
    int64_t M, int64_t N, int64_t stages) {
    using namespace pipeline;
    DYNAMIC_SHARED(ring);
    __shared__ MBarrier full[SLOTS], empty[SLOTS];
    const Barriers barriers{full, empty};
    barriers.init();

    const Problem p(M, N, stages);
    // the same in all lanes: the compiler keeps values that depend on it in uniform registers
    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    if (group == GROUPS) {
        if (TRADES_REGISTERS) fewer_registers<24>();
        if (thread == 0) produce(p, w, x, ring, barriers);
        return;
    }
    if (TRADES_REGISTERS) more_registers<240>();

    const int row_group = group % ROW_GROUPS, k_group = group / ROW_GROUPS;
    const uint8_t* const own_w = ring + WEIGHTS_AT + row_group * WEIGHT_BYTES + k_group * halves::CHUNK;
    const uint8_t* const own_x = ring + k_group * X_BYTES;
    const int slots = p.count, left = (int)stages - (p.first + slots - 1) * K_GROUPS;  // stages from the last slot on
    float acc[COUNT];
    uint32_t a[4][4], others[4][4];
    Slot slot(0);

    // The fragments of this group's stage in slot i of a row; zeros if the last slot has none for it.
    const auto fill = [&](uint32_t (&fragments)[4][4], int i) {
        barriers.wait(slot);
        if (K_GROUPS == 1 || i + 1 < slots || k_group < left) {
            halves::Part of_w;
            of_w.load(own_w + slot.at * SLOT, thread);
#pragma unroll
            for (int j = 0; j < 4; ++j) of_w.fragment(j / 2, j % 2, fragments[j]);
        } else {
#pragma unroll
            for (int j = 0; j < 16; ++j) fragments[j / 4][j % 4] = 0;
        }
    };
    const auto multiply = [&](uint32_t (&fragments)[4][4]) {
        const SharedMatrix b = shared_matrix(own_x + slot.at * SLOT);
#pragma unroll
        for (int j = 0; j < 4; ++j) pin(fragments[j]);
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma<true>(acc, fragments[j], part(b, 0, 16 * j));
        wgmma_commit();
    };
    const auto finish = [&](int at) {
        wgmma_wait<0>();
        wgmma_ready(acc);
        barriers.release(at);
    };
    // Multiplies a stage and meanwhile prepares the fragments of the next one.
    const auto step = [&](uint32_t (&now)[4][4], uint32_t (&next)[4][4], int i) {
        const int at = slot.at;
        multiply(now);
        slot.next();
        if (i + 1 < slots) fill(next, i + 1);
        finish(at);
    };

    for (int64_t number = blockIdx.x; number < p.tiles; number += gridDim.x) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) acc[i] = 0.0f;
        if (PIPELINED) {
            fill(a, 0);
            for (int i = 0; i < slots; i += 2) {
                step(a, others, i);
                if (i + 1 < slots) step(others, a, i + 1);
            }
        } else {
            for (int i = 0; i < slots; ++i) {
                fill(a, i);
                multiply(a);
                finish(slot.at);
                slot.next();
            }
        }

        if constexpr (K_GROUPS > 1) {
            // (K_GROUPS - 1, ROW_GROUPS, COUNT, 128)
            float* const sums = (float*)(ring + (ONE_TILE ? 0 : SLOTS * SLOT)) + row_group * COUNT * WARPGROUP + thread;
            if (ONE_TILE) barrier_sync(2, CONSUMERS);  // the ring has been read, and nothing more comes
            constexpr int PART = ROW_GROUPS * COUNT * WARPGROUP;
            if (k_group > 0)
#pragma unroll
                for (int i = 0; i < COUNT; ++i) sums[(k_group - 1) * PART + i * WARPGROUP] = acc[i];
            barrier_sync(1, CONSUMERS);
            if (k_group == 0)
                for (int k = 0; k < K_GROUPS - 1; ++k)
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) acc[i] = __fadd_rn(acc[i], sums[k * PART + i * WARPGROUP]);
            if (!ONE_TILE) barrier_sync(2, CONSUMERS);
            if (number + gridDim.x >= p.tiles) let_next_launch_start();
            if (k_group > 0) continue;
        } else if (number + gridDim.x >= p.tiles) {
            let_next_launch_start();
        }
        write(p, Tile(p, number), row_group, acc, y);
    }
}
