// A layout of weights for kernels whose lanes have a row each: of any type, since it only says where a block's bytes lie.
//
// A strip is 32 rows. Its blocks along K lie one after the other, and of a block what 32 lanes read at once lies side by
// side: its bytes 0…15 of all rows, 16…31 of all rows, and so on; then what remains in pieces of 8, 4, 2 and 1 bytes.
//
//     strip (N/32)   block (K/VALUES)   piece   row (32)   bytes of the piece
//
// Rows past N are zero. gguf_verify/kernels/interleaved.py takes it apart again.
#pragma once
#include "formats/format.cuh"

namespace interleaved {

constexpr int ROWS = 32, BYTES = sizeof(FORMAT), BLOCK = ROWS * BYTES;  // BLOCK: of all rows, a multiple of 16

// The piece that begins at byte `from` of a block.
__device__ constexpr int piece_at(int from) {
    for (int size = 16; size > 1; size /= 2)
        if (BYTES - from >= size) return size;
    return 1;
}

// A lane's block, copied into registers: whatever FORMAT reads of it at a place that the compiler knows is a register.
struct Block {
    uint32_t words[(BYTES + 15) / 16 * 4];

    __device__ __forceinline__ const FORMAT& format() const { return *(const FORMAT*)words; }

    // From shared memory that holds this block of all rows.
    __device__ __forceinline__ void read(const uint8_t* block, int lane) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) {
            const uint4 four = ((const uint4*)block)[i * ROWS + lane];
            words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
        }
        constexpr int EIGHT = BYTES & ~15, FOUR = BYTES & ~7, TWO = BYTES & ~3, ONE = BYTES & ~1;
        if (BYTES & 8) {
            const uint2 two = ((const uint2*)(block + EIGHT * ROWS))[lane];
            words[EIGHT / 4] = two.x, words[EIGHT / 4 + 1] = two.y;
        }
        if (BYTES & 4) words[FOUR / 4] = ((const uint32_t*)(block + FOUR * ROWS))[lane];
        uint32_t rest = 0;
        if (BYTES & 2) rest = ((const uint16_t*)(block + TWO * ROWS))[lane];
        if (BYTES & 1) rest |= (uint32_t)block[ONE * ROWS + lane] << (BYTES & 2 ? 16 : 0);
        if (BYTES & 3) words[TWO / 4] = rest;
    }
};

}  // namespace interleaved
