// A weight layout for kernels with one row per lane: for any type, since it only defines where a block's bytes are.
//
// A strip is 32 rows. Its blocks along K follow one another, and in a block the bytes that 32 lanes read at once are
// contiguous: bytes 0…15 of all rows, 16…31 of all rows, and so on; then the remainder in pieces of 8, 4, 2 and 1
// bytes.
//
//     strip (N/32)   block (K/VALUES)   piece   row (32)   bytes of the piece
//
// Rows past N are zero. gguf_verify/kernels/interleaved.py decodes it.
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

// A lane's block, copied into registers: whatever FORMAT reads of it at a compile-time index is a register.
struct Block {
    // A block of odd size has one byte before its codes: shifted to byte 3, its codes are in whole words.
    static constexpr int FIRST = BYTES % 2 ? 3 : 0;
    uint32_t words[(BYTES + FIRST + 15) / 16 * 4];

    __device__ __forceinline__ const FORMAT& format() const { return *(const FORMAT*)((const uint8_t*)words + FIRST); }

    // From shared memory that holds this block for all rows.
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
        if (FIRST) {
#pragma unroll
            for (int i = (BYTES + FIRST - 1) / 4; i >= 0; --i)
                words[i] = __byte_perm(i ? words[i - 1] : 0, words[i], 0x4321);
        }
    }
};

// The number of entries of a grid for the lookup of codes; 0 for other types.
template <class F>
__device__ constexpr auto entries_of(int) -> decltype(+F::ENTRIES) {
    return F::ENTRIES;
}
template <class F>
__device__ constexpr int entries_of(long) {
    return 0;
}

// The codes of a slice, x[4j…4j+3] in q[j]. A grid is copied to shared memory: 32 lanes that look up different entries
// in device memory would wait for each of its cache lines.
template <class F, bool = (entries_of<F>(0) > 0)>
struct Grid {
    __device__ __forceinline__ Grid(uint8_t*) {}
    __device__ __forceinline__ void fill(int, int) {}
    __device__ __forceinline__ void codes(const F& weights, int s, int (&q)[8]) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) weights.codes4(s, j, q[j], q[4 + j]);
    }
};
template <class F>
struct Grid<F, true> {
    uint32_t* entries;
    __device__ __forceinline__ Grid(uint8_t* shared) : entries((uint32_t*)shared) {}
    __device__ __forceinline__ void fill(int thread, int threads) {
#pragma unroll 1
        for (int i = thread; i < F::ENTRIES; i += threads) entries[i] = F::entry(i);
    }
    __device__ __forceinline__ uint32_t operator[](int i) const { return entries[i]; }
    __device__ __forceinline__ void codes(const F& weights, int s, int (&q)[8]) const { weights.codes(s, *this, q); }
};

}  // namespace interleaved
