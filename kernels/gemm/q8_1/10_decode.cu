// 10 decode, weights of any type: a few tokens, where a product takes the time of reading W once. 08 uses tensor cores,
// which a few tokens do not need, with a layout that only fits codes of 4, 5 and 8 bits. Here only the header of a type
// in formats/ is used:
//
//   - A lane has a row. What 32 lanes read of a block is contiguous (interleaved.cuh), so that copies are bulk copies
//     without bank conflicts; a lane copies its block into registers and unpacks it there, by functions of the type, at
//     compile-time indices. A grid for the lookup of codes is in shared memory.
//   - The warps of a thread block have different units of K, of UNIT values. A unit's products are integers (__dp4a),
//     exact in any order, and wait in registers (as terms, if there is room) until it is the unit's turn: the sums of
//     32 rows so far are a baton that is passed from warp to warp. Only the warp that holds it adds, in ascending k, as
//     in 01: one or two dependent operations for each 32 or 16 values.
//   - Everything else is as in 08: each warp keeps its own ring filled, launches overlap, the thread blocks of a
//     cluster quantize x together in the same launch, and thread blocks continue with further strips.
//
// NVRTC 13 generates a loop of 443 instructions for a unit of Q4_0 and one token (sm_90; IQ2_XXS 950, IQ4_XS 969, MXFP4
// 1,015). With N = 14336 and K = 4096 there are 14 units for each scheduler of 132 multiprocessors: 13,000 instructions
// of IQ2_XXS, in the 6,500 cycles that its 15 MB take at 4.1 TB/s. Measured on one H200 (M = 1): Q4_K 10.2 µs, Q6_K
// 14.9 (48 MB), Q2_K 12.9 (19 MB), IQ2_XXS 12.4 (15 MB). So types with few bits are limited by instructions.
#include "../../async.cuh"
#include "../../interleaved.cuh"
#include "activations.cuh"

using interleaved::BLOCK;

constexpr int BLOCKS = UNIT / FORMAT::VALUES;                   // of a unit
constexpr int OF_BLOCK = FORMAT::VALUES / QK, SLICES = UNIT / QK, GROUPS = Scales<FORMAT>::GROUPS;
constexpr int THREADS = WARPS * 32, ROUND = WARPS * SLICES;     // slices that all warps have at a time
constexpr int SLOT = BLOCKS * BLOCK;                            // a unit's weights
constexpr bool PREPARED = TOKENS * SLICES * GROUPS <= 32;  // registers hold a unit's terms before it is its turn
constexpr bool SUMS = FORMAT::MINIMUM == Minimum::MEETS_CODES;  // of activations' codes
constexpr int SCALES_AT = WARPS * STAGES * SLOT, SUMS_AT = SCALES_AT + TOKENS * X_SLICES * 8;
constexpr int X_AT = (SUMS_AT + (SUMS ? TOKENS * X_SLICES * GROUPS * 4 : 0) + 15) / 16 * 16;
constexpr int GRID_AT = X_AT + TOKENS * X_SLICES * 32;
static_assert(interleaved::entries_of<FORMAT>(0) == GRID_ENTRIES, "the harness gives the grid another room");
static_assert(UNIT % FORMAT::VALUES == 0 && X_SLICES % ROUND == 0, "parts of x are whole rounds");

// x in shared memory: its codes, its scales {d, s} and, if minima are multiplied by them, the sums of its codes.
struct Activations {
    uint4* codes;    // [TOKENS][X_SLICES][2], of 16 values each
    float2* scales;  // [TOKENS][X_SLICES]
    float* sums;     // [TOKENS][X_SLICES][GROUPS]
};

// A group's term, as far as it does not depend on the sum so far (add_term in common.cuh).
template <class F>
struct Term {
    static constexpr bool OFFSET = F::MINIMUM == Minimum::OFFSET;
    float factor, value, z;

    __device__ __forceinline__ static Term of(float d_w, float d_a, float z, float products) {
        if (OFFSET) return {d_w, __fmaf_rn(d_a, products, z), z};
        return {__fmul_rn(d_w, d_a), products, z};
    }
    __device__ __forceinline__ float add(float acc, float m_w) const {
        acc = __fmaf_rn(factor, value, acc);
        return OFFSET || F::MINIMUM == Minimum::NONE ? acc : __fmaf_rn(m_w, z, acc);
    }
};

// A thread block's first strip, and its tokens: the row of x and of y for each. gemm/experts/decode.cu defines others.
#ifndef EXPERTS
struct Share {
    int64_t first_strip, first_token;
    int tokens;

    __device__ int64_t row_of_x(int token) const { return first_token + token; }
    __device__ int64_t row_of_y(int token) const { return first_token + token; }
};
#endif

// `count` slices of each token from slice `first` on.
template <bool VALUES>
__device__ __forceinline__ void take_tokens(const Activations& to, const void* x, const Share& share, int64_t slices,
                                            int64_t first, int count) {
    const auto place = [&](int i) {
        const int token = i / count, slice = turned<VALUES>(i - token * count, count);
        return PlaceOfX{share.row_of_x(token) * slices + first + slice, token * X_SLICES + slice};
    };
    const auto store = [&](Sharer<VALUES> in, int at, int c, const PartOfX& part) {
        uint32_t* codes = (uint32_t*)in(to.codes + at * 2);
        codes[c] = part.low, codes[4 + c] = part.high;
        if (c != 0) return;
        *in(to.scales + at) = {part.scale(), part.sum()};
        if (!SUMS) return;
        float* sums = in(to.sums + at * GROUPS);
        sums[0] = (float)(GROUPS == 2 ? part.low_sum : part.low_sum + part.high_sum);
        if (GROUPS == 2) sums[GROUPS - 1] = (float)part.high_sum;
    };
    take_x<VALUES, SUMS, THREADS>(x, share.tokens * count, place, store);
}

template <bool VALUES>
__device__ __forceinline__ void run(const uint8_t* __restrict__ w, const void* __restrict__ x, float* __restrict__ y,
                                    const Share& share, int64_t N, int64_t blocks, int64_t of_tile) {
    DYNAMIC_SHARED(shared);
    using Cluster = Sharers<VALUES ? CLUSTER : 1>;
    Cluster::begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int nb = (int)blocks, units = (nb + BLOCKS - 1) / BLOCKS, rounds = (units + WARPS - 1) / WARPS;
    const int slices = nb * OF_BLOCK;
    const int64_t strips = (N + 31) / 32, first_strip = share.first_strip;
    const int64_t steps = (strips - first_strip + of_tile - 1) / of_tile * rounds;
    const Activations on_chip = {(uint4*)(shared + X_AT), (float2*)(shared + SCALES_AT), (float*)(shared + SUMS_AT)};
    uint8_t* ring = shared + warp * (STAGES * SLOT);
    interleaved::Grid<FORMAT> grid(shared + GRID_AT);
    __shared__ float baton[TOKENS][32];
    __shared__ MBarrier all_full[BULK_COPIES ? WARPS * STAGES : 1];
    MBarrier* full = all_full + (BULK_COPIES ? warp * STAGES : 0);
    if (BULK_COPIES && lane == 0) {
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1);
        before_bulk_copies();
    }
    __syncwarp();

    // The copies are STAGES units ahead.
    int64_t ahead = first_strip;
    int ahead_unit = warp;
    const auto fill = [&](int stage) {
        if (ahead_unit >= units) ahead_unit = warp, ahead += of_tile;
        if (ahead < strips && ahead_unit < units) {
            const int first = ahead_unit * BLOCKS, count = nb - first < BLOCKS ? nb - first : BLOCKS;
            const uint8_t* from = w + (ahead * nb + first) * BLOCK;
            if (!BULK_COPIES) {
                for (int i = lane * 16; i < count * BLOCK; i += 512) async_copy16(ring + stage * SLOT + i, from + i);
            } else if (lane == 0) {
                mbarrier_expect(&full[stage], count * BLOCK);
                bulk_copy(ring + stage * SLOT, from, count * BLOCK, &full[stage]);
            }
        }
        if (!BULK_COPIES) async_commit();
        ahead_unit += WARPS;
    };
    if (warp < units) {
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) fill(i);
    }
    grid.fill(threadIdx.x, THREADS);
    wait_for_last_launch();
    Cluster::others_run();
    take_tokens<VALUES>(on_chip, x, share, slices, 0, VALUES || slices < X_SLICES ? slices : X_SLICES);
    Cluster::meet();
    let_next_launch_start();

    int stage = 0, parity = 0, round = 0, x_base = 0;  // x_base: the slice of x on chip at which the round begins
    int64_t strip = first_strip;
    for (int64_t step = 0; step < steps; ++step, ++round, x_base += ROUND) {
        if (round == rounds) round = x_base = 0, strip += of_tile;
        if (x_base == X_SLICES) x_base = 0;
        if (!VALUES && slices > X_SLICES && step > 0 && x_base == 0) {
            const int first = round * ROUND, left = slices - first;
            __syncthreads();
            take_tokens<false>(on_chip, x, share, slices, first, left < X_SLICES ? left : X_SLICES);
            __syncthreads();
        }
        const int unit = round * WARPS + warp;
        if (unit >= units) continue;

        // the unit's products
        const int count = nb - unit * BLOCKS < BLOCKS ? nb - unit * BLOCKS : BLOCKS, slice = x_base + warp * SLICES;
        int sums[TOKENS][SLICES][GROUPS];
        Scales<FORMAT> scales[SLICES];
        if (BULK_COPIES) {
            mbarrier_wait(&full[stage], parity);
        } else {
            async_wait<STAGES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            interleaved::Block block;
            block.read(ring + stage * SLOT + b * BLOCK, lane);
            const FORMAT& weights = block.format();
#pragma unroll
            for (int of_block = 0; of_block < OF_BLOCK; ++of_block) {
                const int s = b * OF_BLOCK + of_block;
                scales[s].read(weights, of_block);
                int codes[8];
                grid.codes(weights, of_block, codes);
#pragma unroll
                for (int token = 0; token < TOKENS; ++token) {
#pragma unroll
                    for (int h = 0; h < GROUPS; ++h) sums[token][s][h] = INTEGER_BASE;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const uint4 four = on_chip.codes[(token * X_SLICES + slice + s) * 2 + half];
                        int& sum = sums[token][s][half % GROUPS];
                        sum = __dp4a(codes[4 * half], (int)four.x, sum);
                        sum = __dp4a(codes[4 * half + 1], (int)four.y, sum);
                        sum = __dp4a(codes[4 * half + 2], (int)four.z, sum);
                        sum = __dp4a(codes[4 * half + 3], (int)four.w, sum);
                    }
                }
            }
        }
        before_bulk_copies();
        __syncwarp();
        fill(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;

        const auto term_of = [&](int token, int s, int h) {
            const int at = token * X_SLICES + slice + s;
            const float2 of_x = on_chip.scales[at];
            const float codes = SUMS ? on_chip.sums[at * GROUPS + h] : 0.0f;
            return Term<FORMAT>::of(scales[s].scale(h), of_x.x, z_of<FORMAT>(of_x.x, of_x.y, codes),
                                    above_base(sums[token][s][h]));
        };
        constexpr int OF = PREPARED ? TOKENS : 1, S_OF = PREPARED ? SLICES : 1, H_OF = PREPARED ? GROUPS : 1;
        Term<FORMAT> terms[OF][S_OF][H_OF];
        if (PREPARED) {
#pragma unroll
            for (int token = 0; token < OF; ++token)
#pragma unroll
                for (int s = 0; s < S_OF; ++s)
#pragma unroll
                    for (int h = 0; h < H_OF; ++h) terms[token][s][h] = term_of(token, s, h);
        }

        // Its turn. The warp with a strip's last unit passes the baton to the one that begins the next strip, and both
        // may be the same.
        const bool begins = unit == 0, ends = unit == units - 1;
        if (begins ? step > 0 && (units - 1) % WARPS != 0 : true) barrier_sync(1 + warp, 64);
        float acc[TOKENS];
#pragma unroll
        for (int token = 0; token < TOKENS; ++token) acc[token] = begins ? 0.0f : baton[token][lane];
        const auto add = [&](int s) {
#pragma unroll
            for (int token = 0; token < TOKENS; ++token)
#pragma unroll
                for (int h = 0; h < GROUPS; ++h) {
                    const Term<FORMAT> term = PREPARED ? terms[token % OF][s % S_OF][h % H_OF] : term_of(token, s, h);
                    acc[token] = term.add(acc[token], scales[s].minimum(h));
                }
        };
        if (BLOCKS == 1 || count == BLOCKS) {
#pragma unroll
            for (int s = 0; s < SLICES; ++s) add(s);
        } else {
#pragma unroll
            for (int s = 0; s < SLICES; ++s)
                if (s / OF_BLOCK < count) add(s);
        }
        if (!ends) {
#pragma unroll
            for (int token = 0; token < TOKENS; ++token) baton[token][lane] = acc[token];
        }
        const int next = ends ? 0 : (warp + 1) % WARPS;
        if (next != warp && !(ends && strip + of_tile >= strips)) barrier_arrive(1 + next, 64);
        if (ends) {
            const int64_t n = strip * 32 + lane;
#pragma unroll
            for (int token = 0; token < TOKENS; ++token)
                if (n < N && token < share.tokens) y[share.row_of_y(token) * N + n] = acc[token];
        }
    }
}

#ifndef EXPERTS
__device__ __forceinline__ Share share_of(int64_t M, int64_t of_tile) {
    const int64_t first = blockIdx.x / of_tile * TOKENS;
    return {blockIdx.x % of_tile, first, M - first < TOKENS ? (int)(M - first) : TOKENS};
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    gemm(const uint8_t* __restrict__ w,  // interleaved strips
         const Q8_1* __restrict__ x,     // (M, K/32)
         float* __restrict__ y,          // (M, N)
         int64_t M, int64_t N, int64_t blocks,
         int64_t of_tile) {  // thread blocks of each tile of TOKENS
    run<false>(w, x, y, share_of(M, of_tile), N, blocks, of_tile);
}

// The same from values, of at most X_SLICES slices a row.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, CTAS)
    gemm_values(const uint8_t* __restrict__ w, const float* __restrict__ x, float* __restrict__ y, int64_t M, int64_t N,
                int64_t blocks, int64_t of_tile) {
    run<true>(w, x, y, share_of(M, of_tile), N, blocks, of_tile);
}
#endif
