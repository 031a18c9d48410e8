// GGUF rows → packed weights (packed.cuh): a thread writes its part of a chunk from four rows.
#include "packed.cuh"

extern "C" __global__ void pack(const FORMAT* __restrict__ w,  // (N, blocks)
                                uint8_t* __restrict__ out,     // (tiles of 128 rows, padded blocks) chunks
                                int64_t N, int64_t blocks, int64_t padded) {
    using namespace packed;
    const int64_t chunks = (N + ROWS - 1) / ROWS * padded;
    const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const int64_t tile = chunk / padded, block = chunk % padded;
        uint8_t* to = out + chunk * CHUNK;
        uint32_t high_bits = 0;
        for (int t = 0; t < 2; ++t)
            for (int r = 0; r < 2; ++r) {
                const int64_t row = tile * ROWS + 64 * t + 16 * warp + 8 * r + g;
                const bool there = row < N && block < blocks;
                const FORMAT* b = w + row * blocks + block;
                int low = 0, high = 0;
                if (there) b->codes4(0, c, low, high);
                if (BYTES) {
                    uint32_t* codes = (uint32_t*)to + (thread * 2 + t) * 4 + r * 2;
                    codes[0] = low, codes[1] = high;
                } else {
                    ((uint32_t*)to)[thread * 4 + 2 * t + r] = (low & 0x0F0F0F0F) | (high & 0x0F0F0F0F) << 4;
                    for (int j = 0; j < 2; ++j)
                        for (int i = 0; i < 4; ++i)
                            high_bits |= ((uint32_t)(j ? high : low) >> (8 * i + 4) & 1) << (8 * i + 2 * (2 * t + r) + j);
                }
                if (c == 0) {
                    ((uint16_t*)(to + D_AT))[thread / 4 * 4 + 2 * t + r] = there ? b->d : 0;
                    if (HAS_M) ((uint16_t*)(to + M_AT))[thread / 4 * 4 + 2 * t + r] = there ? m_bits(*b) : 0;
                }
            }
        if (HAS_HIGH) ((uint32_t*)(to + HIGH_AT))[thread] = high_bits;
    }
}
