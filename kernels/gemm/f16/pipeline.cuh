// The common code of 03 and 04: tiles of outputs that thread blocks compute one after another, a ring of operand slots
// in shared memory that one thread keeps filled with bulk copies, and the writing of outputs. Rows may be split into
// parts, one per index of the grid's second dimension.
//
// Macros: TOKENS (8 … 256) and ROW_GROUPS · 64 rows of a tile, K_GROUPS stages of 64 values in a slot, SLOTS, CTAS
// thread blocks per multiprocessor. A stage of 64 rows has WEIGHT_CHUNK bytes of weights.
#pragma once
#include "../../async.cuh"
#include "wgmma.cuh"

namespace pipeline {

constexpr int ROWS = 64, WARPGROUP = 128;
constexpr int GROUPS = ROW_GROUPS * K_GROUPS, CONSUMERS = GROUPS * WARPGROUP;
constexpr bool TRADES_REGISTERS = CTAS == 1 && GROUPS == 2;  // between whole warpgroups
constexpr int THREADS = CONSUMERS + (TRADES_REGISTERS ? WARPGROUP : 32);
constexpr int COUNT = TOKENS / 2;  // outputs of a thread
constexpr int X_BYTES = TOKENS * 128;
constexpr int WEIGHTS_AT = K_GROUPS * X_BYTES, WEIGHT_BYTES = K_GROUPS * WEIGHT_CHUNK;
constexpr int SLOT = (WEIGHTS_AT + ROW_GROUPS * WEIGHT_BYTES + 1023) / 1024 * 1024;

struct Problem {
    int64_t M, N, stages, slots, tiles64, row_tiles, token_tiles, tiles;
    int first, count;  // the slots of this thread block's part of a row

    // The activations have whole slots of stages. A row is split into gridDim.y parts, none of them empty.
    __device__ Problem(int64_t m, int64_t n, int64_t of_row) : M(m), N(n), stages(of_row) {
        slots = (stages + K_GROUPS - 1) / K_GROUPS, tiles64 = (N + ROWS - 1) / ROWS;
        row_tiles = (tiles64 + ROW_GROUPS - 1) / ROW_GROUPS;
        token_tiles = (M + TOKENS - 1) / TOKENS, tiles = row_tiles * token_tiles;
        const int part = ((int)slots + gridDim.y - 1) / gridDim.y;
        first = blockIdx.y * part, count = (int)slots - first < part ? (int)slots - first : part;
    }
};

// The rows and tokens of a tile. Tiles with successive numbers share rows and tokens: eight tiles of rows by all
// tokens, then the next eight.
struct Tile {
    int64_t rows, tokens;  // tile of ROW_GROUPS · 64 rows, tile of TOKENS

    __device__ Tile(const Problem& p, int64_t number) {
        const int64_t band = number / (8 * p.token_tiles), in_band = number - band * 8 * p.token_tiles;
        const int64_t wide = p.row_tiles - band * 8 < 8 ? p.row_tiles - band * 8 : 8;
        rows = band * 8 + in_band % wide, tokens = in_band / wide;
    }
};

// A position in the ring, and the parity of its current phase.
struct Slot {
    int at = 0, parity;

    __device__ explicit Slot(int first) : parity(first) {}
    __device__ __forceinline__ void next() {
        at = at + 1 == SLOTS ? 0 : at + 1;
        parity ^= at == 0;
    }
};

// `full` completes when a slot's bytes have arrived, `empty` when the consumers have read them.
struct Barriers {
    MBarrier *full, *empty;

    __device__ void init() const {
        if (threadIdx.x == 0)
            for (int i = 0; i < SLOTS; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS);
        mbarrier_init_done();
    }
    __device__ __forceinline__ void wait(const Slot& slot) const { mbarrier_wait(&full[slot.at], slot.parity); }
    // Called by every lane: racecheck cannot follow one lane acting for its warp.
    __device__ __forceinline__ void release(int slot) const { mbarrier_arrive(&empty[slot]); }
};

// Fills the ring for all tiles of this thread block; called by one thread. The first weights may arrive before the
// previous launch has ended: its results are activations.
__device__ __forceinline__ void produce(const Problem& p, const uint8_t* w, const uint8_t* x, uint8_t* ring,
                                        const Barriers& barriers) {
    const auto take_weights = [&](const Tile& tile, int i, int at) {
        const int64_t stage = (int64_t)(p.first + i) * K_GROUPS;
        const int count = p.stages - stage < K_GROUPS ? (int)(p.stages - stage) : K_GROUPS;
        mbarrier_expect(&barriers.full[at], WEIGHTS_AT + count * ROW_GROUPS * WEIGHT_CHUNK);
#pragma unroll
        for (int g = 0; g < ROW_GROUPS; ++g) {  // the last tile replaces one past the end
            const int64_t of = tile.rows * ROW_GROUPS + g < p.tiles64 ? tile.rows * ROW_GROUPS + g : p.tiles64 - 1;
            bulk_copy(ring + at * SLOT + WEIGHTS_AT + g * WEIGHT_BYTES, w + (of * p.stages + stage) * WEIGHT_CHUNK,
                      count * WEIGHT_CHUNK, &barriers.full[at]);
        }
    };
    const auto take_tokens = [&](const Tile& tile, int i, int at) {
        bulk_copy(ring + at * SLOT, x + (tile.tokens * p.slots + p.first + i) * K_GROUPS * X_BYTES, WEIGHTS_AT,
                  &barriers.full[at]);
    };
    const int begun = p.count < SLOTS ? p.count : SLOTS;
    const Tile begins(p, blockIdx.x);
    for (int i = 0; i < begun; ++i) take_weights(begins, i, i);
    wait_for_last_launch();
    Slot slot(1);
    for (int i = 0; i < begun; ++i) take_tokens(begins, i, i), slot.next();
    for (int64_t number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const Tile tile(p, number);
        for (int i = number == blockIdx.x ? begun : 0; i < p.count; ++i) {
            mbarrier_wait(&barriers.empty[slot.at], slot.parity);
            take_weights(tile, i, slot.at), take_tokens(tile, i, slot.at);
            slot.next();
        }
    }
}

// The outputs of a warpgroup: acc in the layout of `wgmma`, except that rows g and g + 8 of a warp's 16 are rows 2g and
// 2g + 1 of W (halves.cuh). The outputs of a part follow those of the previous part.
__device__ __forceinline__ void write(const Problem& p, const Tile& tile, int row_group, const float (&acc)[COUNT],
                                      float* y) {
    const int thread = threadIdx.x % WARPGROUP;
    const int64_t n = (tile.rows * ROW_GROUPS + row_group) * ROWS + thread / 32 * 16 + thread % 32 / 4 * 2;
    const bool pairs = p.N % 2 == 0;
    y += (p.M * p.N + 3) / 4 * 4 * blockIdx.y + n;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int64_t m = tile.tokens * TOKENS + 2 * i + 2 * (thread % 4) + e;
            if (m >= p.M || n >= p.N) continue;
            if (pairs) {
                *(float2*)(y + m * p.N) = {acc[i + e], acc[i + 2 + e]};
            } else {
                y[m * p.N] = acc[i + e];
                if (n + 1 < p.N) y[m * p.N + 1] = acc[i + 2 + e];
            }
        }
}

}  // namespace pipeline
