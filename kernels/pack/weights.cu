// GGUF rows → packed weights (packed.cuh): a thread writes its part of a chunk from four rows. STRIPS: as strips.
#include "packed.cuh"
#ifndef STRIPS
#define STRIPS 0
#endif

extern "C" __global__ void pack(const FORMAT* __restrict__ w,  // (N, blocks)
                                uint8_t* __restrict__ out,     // (tiles of 128 rows, padded blocks) chunks
                                int64_t N, int64_t blocks, int64_t padded) {
    using namespace packed;
    const int64_t chunks = (N + ROWS - 1) / ROWS * padded;
    const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const int64_t tile = chunk / padded, block = chunk % padded;
        // where the codes, … of this thread, or of all, begin
        uint8_t* to = STRIPS ? out + ((tile * 4 + warp) * padded + block) * PART : out + chunk * CHUNK;
        const int at = STRIPS ? thread % 32 : thread;
        const int high_at = STRIPS ? PART_HIGH : HIGH_AT, d_at = STRIPS ? PART_D : D_AT, m_at = STRIPS ? PART_M : M_AT;
        uint32_t high_bits = 0;
        for (int t = 0; t < 2; ++t)
            for (int r = 0; r < 2; ++r) {
                const int64_t row = tile * ROWS + 64 * t + 16 * warp + 8 * r + g;
                const bool there = row < N && block < blocks;
                const FORMAT* b = w + row * blocks + block;
                int low = 0, high = 0;
                if (there) b->codes4(0, c, low, high);
                if (BYTES) {
                    uint32_t* codes = (uint32_t*)to + (at * 2 + t) * 4 + r * 2;
                    codes[0] = low, codes[1] = high;
                } else {
                    ((uint32_t*)to)[at * 4 + 2 * t + r] = (low & 0x0F0F0F0F) | (high & 0x0F0F0F0F) << 4;
                    for (int j = 0; j < 2; ++j)
                        for (int i = 0; i < 4; ++i)
                            high_bits |= ((uint32_t)(j ? high : low) >> (8 * i + 4) & 1) << (8 * i + 2 * (2 * t + r) + j);
                }
                if (c == 0) {
                    ((uint16_t*)(to + d_at))[at / 4 * 4 + 2 * t + r] = there ? b->d : 0;
                    if (HAS_M) ((uint16_t*)(to + m_at))[at / 4 * 4 + 2 * t + r] = there ? m_bits(*b) : 0;
                }
            }
        if (HAS_HIGH) ((uint32_t*)(to + high_at))[at] = high_bits;
    }
}
