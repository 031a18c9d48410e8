// GGUF rows → the packed weights of gemm/f16/halves.cuh: a thread writes its part of a chunk from two rows and two
// slices.
#include "gemm/f16/halves.cuh"

extern "C" __global__ void pack(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                uint8_t* __restrict__ out,     // (tiles of 64 rows, stages) chunks
                                int64_t N, int64_t slices, int64_t stages) {
    using namespace halves;
    constexpr int SLICES = FORMAT::VALUES / QK;
    const int64_t chunks = (N + ROWS - 1) / ROWS * stages;
    const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        uint32_t* to = (uint32_t*)(out + chunk * CHUNK);
        uint8_t* scales = out + chunk * CHUNK + SCALES_AT + thread / 4 * SCALE_BYTES;
        for (int s = 0; s < 2; ++s)
            for (int r = 0; r < 2; ++r) {
                const int64_t row = chunk / stages * ROWS + 16 * warp + 2 * g + r, slice = chunk % stages * 2 + s;
                const bool there = row < N && slice < slices;
                const FORMAT* b = w + row * (slices / SLICES) + slice / SLICES;
                int words[2] = {};
                if (there) b->codes4((int)(slice % SLICES), c, words[0], words[1]);
                uint32_t nibbles = 0;
                for (int half = 0; half < 2; ++half) {
                    uint32_t bytes = 0;
                    for (int i = 0; i < 4; ++i) {
                        const int read = (int8_t)(words[half] >> 8 * i);
                        const uint32_t code = there ? (uint32_t)(read - (CODE_LOW)) & 0xFF : 0;
                        bytes |= code << 8 * i;
                        nibbles |= (code & 15) << 4 * (2 * half + i / 2 + 4 * (i % 2));
                    }
                    if (!NIBBLES) to[(s * THREADS + thread) * 4 + 2 * r + half] = bytes;
                }
                if (NIBBLES) to[thread * 4 + 2 * s + r] = nibbles;
                for (int group = 0; c == 0 && group < GROUPS; ++group) {
                    const float d = there ? b->scale((int)(slice % SLICES), group) : 0.0f;
                    const float m = there && MINIMA ? b->minimum((int)(slice % SLICES), group) : 0.0f;
                    const int at = (r * 2 + s) * GROUPS + group;
                    if (HALF_SCALES) {
                        ((uint16_t*)scales)[at] = float_to_half(d);
                        if (MINIMA) ((uint16_t*)scales)[SCALES + at] = float_to_half(m);
                    } else {
                        ((float*)scales)[at] = d;
                        if (MINIMA) ((float*)scales)[SCALES + at] = m;
                    }
                }
            }
    }
}
