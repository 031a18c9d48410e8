// GGUF rows → packed weights (packed.cuh): a thread writes its part of a chunk from four rows. STRIPS: as strips.
#include "packed.cuh"
#ifndef STRIPS
#define STRIPS 0
#endif
static_assert(packed::CHUNK == CHUNK_BYTES, "the harness and the kernels disagree about the size of a chunk");

extern "C" __global__ void pack(const FORMAT* __restrict__ w,  // (N, slices / (VALUES / 32))
                                uint8_t* __restrict__ out,     // (tiles of 128 rows, padded slices) chunks
                                int64_t N, int64_t slices, int64_t padded) {
    using namespace packed;
    constexpr int SLICES = FORMAT::VALUES / QK, QUADS = STRIPS ? 8 : 32;
    const int64_t chunks = (N + ROWS - 1) / ROWS * padded, blocks = slices / SLICES;
    const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const int64_t tile = chunk / padded, slice = chunk % padded;
        const int s = (int)(slice % SLICES);
        // the start of the codes, … of this thread, or of all
        uint8_t* to = STRIPS ? out + ((tile * 4 + warp) * padded + slice) * PART : out + chunk * CHUNK;
        const int at = STRIPS ? thread % 32 : thread;
        const int high_at = STRIPS ? PART_HIGH : HIGH_AT, d_at = STRIPS ? PART_D : D_AT, m_at = STRIPS ? PART_M : M_AT;
        uint32_t high_bits = 0;
        for (int t = 0; t < 2; ++t)
            for (int r = 0; r < 2; ++r) {
                const int64_t row = tile * ROWS + 64 * t + 16 * warp + 8 * r + g;
                const bool there = row < N && slice < slices;
                const FORMAT* b = w + row * blocks + slice / SLICES;
                int low = 0, high = 0;
                if (there) b->codes4(s, c, low, high);
                if (BYTES) {
                    uint32_t* codes = (uint32_t*)to + (at * 2 + t) * 4 + r * 2;
                    codes[0] = low, codes[1] = high;
                } else {
                    ((uint32_t*)to)[at * 4 + 2 * t + r] = (low & 0x0F0F0F0F) | (high & 0x0F0F0F0F) << 4;
                    for (int j = 0; j < 2; ++j)
                        for (int i = 0; i < 4; ++i)
                            high_bits |= ((uint32_t)(j ? high : low) >> (8 * i + 4) & 1) << (8 * i + 2 * (2 * t + r) + j);
                }
                if (c != 0) continue;
                for (int h = 0; h < SLICE_GROUPS; ++h) {
                    const int place = (h * QUADS + at / 4) * 4 + 2 * t + r;
                    const float d = there ? b->scale(s, h) : 0.0f, m = there && HAS_M ? b->minimum(s, h) : 0.0f;
                    if (HALF_SCALES) {  // these floats are values of halves
                        ((uint16_t*)(to + d_at))[place] = float_to_half(d);
                        if (HAS_M) ((uint16_t*)(to + m_at))[place] = float_to_half(m);
                    } else {
                        ((float*)(to + d_at))[place] = d;
                        if (HAS_M) ((float*)(to + m_at))[place] = m;
                    }
                }
            }
        if (HAS_HIGH) ((uint32_t*)(to + high_at))[at] = high_bits;
    }
}
