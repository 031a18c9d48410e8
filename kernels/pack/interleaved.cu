// GGUF rows → interleaved strips (interleaved.cuh). A thread writes a row's part of a block, piece by piece.
#include "interleaved.cuh"

extern "C" __global__ void pack(const uint8_t* __restrict__ w,  // (N, blocks) blocks
                                uint8_t* __restrict__ out,      // (strips, blocks) of 32 blocks each
                                int64_t N, int64_t blocks) {
    using namespace interleaved;
    const int64_t all = (N + ROWS - 1) / ROWS * ROWS * blocks, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
        const int64_t chunk = i / ROWS, row = chunk / blocks * ROWS + i % ROWS;
        const uint8_t* from = w + (row * blocks + chunk % blocks) * BYTES;
        uint8_t* to = out + chunk * BLOCK;
        for (int at = 0, size; at < BYTES; at += size) {
            size = piece_at(at);
            for (int j = 0; j < size; ++j) to[at * ROWS + i % ROWS * size + j] = row < N ? from[at + j] : 0;
        }
    }
}
