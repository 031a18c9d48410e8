// 04 dequantized, for Hopper (sm_90a): W becomes halves in memory once, and both operands of `wgmma` come from shared
// memory.
//
// What is new. The consumers do nothing but products: four instructions per stage, and one stage is always pending
// while the products of the next one are issued. With thousands of tokens, 03 would unpack each weight once per 256 of
// them.
//
// What it costs. Halves are written and read again: for Q4_0, 4 bytes per weight in addition to 0.56, so it is only for
// many tokens.
#include "halves.cuh"

#define WEIGHT_CHUNK 8192
#include "pipeline.cuh"

// Packed weights (halves.cuh) → tiles of 64 rows and 64 halves in the layout of hopper.cuh's SharedMatrix.
extern "C" __global__ void __launch_bounds__(128) dequantize(const uint8_t* __restrict__ w,  // (chunks)
                                                          uint8_t* __restrict__ out,     // (chunks, 64, 64) halves
                                                          int64_t chunks) {
    __shared__ __align__(16) uint8_t tile[WEIGHT_CHUNK];  // so that lanes write adjacent 16-byte pieces
    const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        halves::Part of_w;
        of_w.load(w + chunk * halves::CHUNK, thread);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t a[4];
            of_w.fragment(j / 2, j % 2, a);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = 16 * warp + g + 8 * (i % 2), piece = 2 * j + i / 2;
                *(uint32_t*)(tile + row * 128 + (piece ^ row % 8) * 16 + 4 * c) = a[i];
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WEIGHT_CHUNK / 16 / 128; ++i)
            ((uint4*)(out + chunk * WEIGHT_CHUNK))[i * 128 + thread] = ((const uint4*)tile)[i * 128 + thread];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(pipeline::THREADS, CTAS) gemm(
    const uint8_t* __restrict__ w,  // (tiles of 64 rows, stages, 64, 64) halves
    const uint8_t* __restrict__ x,  // (tiles of TOKENS, stages, TOKENS, 64) halves
    float* __restrict__ y,          // (M, N)
    int64_t M, int64_t N, int64_t stages) {
    using namespace pipeline;
    DYNAMIC_SHARED(ring);
    __shared__ MBarrier full[SLOTS], empty[SLOTS];
    const Barriers barriers{full, empty};
    barriers.init();

    const Problem p(M, N, stages);
    const int group = threadIdx.x / WARPGROUP;
    if (group == GROUPS) {
        fewer_registers<24>();
        if (threadIdx.x % WARPGROUP == 0) produce(p, w, x, ring, barriers);
        return;
    }
    more_registers<240>();

    float acc[COUNT];
    Slot slot(0);
    for (int64_t number = blockIdx.x; number < p.tiles; number += gridDim.x) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) acc[i] = 0.0f;
        int before = -1;  // the slot whose products are pending
        for (int i = 0; i < p.count; ++i) {
            const uint8_t* at = ring + slot.at * SLOT;
            const SharedMatrix a = shared_matrix(at + WEIGHTS_AT + group * WEIGHT_BYTES), b = shared_matrix(at);
            barriers.wait(slot);
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < 4; ++j) wgmma<true>(acc, part(a, 0, 16 * j), part(b, 0, 16 * j));
            wgmma_commit();
            if (before >= 0) {
                wgmma_wait<1>();
                barriers.release(before);
            }
            before = slot.at;
            slot.next();
        }
        wgmma_wait<0>();
        wgmma_ready(acc);
        barriers.release(before);
        write(p, Tile(p, number), group, acc, y);
    }
}
