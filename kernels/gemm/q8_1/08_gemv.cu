// 08 decode: a few tokens, where a product takes the time of reading W once. 2·M operations per weight of 4.5 bits
// leave all units except memory idle: 33 MB of Q4_0 (N = 14336, K = 4096) take 8 µs at 4.1 TB/s. In that time each of
// 132 multiprocessors issues at most some 140 instructions for 32 of its blocks. So the number of instructions matters
// too, and so does the time before the first byte is requested and after the last one has arrived:
//
//   - Weights are packed in strips of 32 rows (packed.cuh): what a warp reads at a time is contiguous, one instruction
//     (hopper.cuh) copies it into the warp's own ring, and no warp waits for another warp's copies.
//   - The launch may overlap the previous one (griddepcontrol): it requests weights while that one still runs, and then
//     waits for its end, since x may be its result. The next launch may start once x has arrived, not earlier, or x
//     would queue behind that launch's weights.
//   - The thread blocks of a cluster quantize x together in the same launch (activations.cuh): a separate launch would
//     take longer.
//   - There are as many thread blocks as can be resident; each continues with further strips.
//
// With up to four tokens, the warps of a thread block share a strip and read different parts of K. Still, an output's
// terms are added in ascending k, as in 01. Only that addition is a dependent chain, of one or two operations per
// block: all warps compute terms in any order and store them in shared memory, and one more warp for each token adds
// them, one lane per row, while the others compute the next ones. The tensor cores' eight columns are four blocks by
// two tokens, so that no lane needs to select or exchange anything.
//
// Instructions of a warp for four blocks of a strip and one token of Q4_0: 7 loads, 48 to unpack, 8 to place x in its
// columns, 8 products, 16 for terms; the adding warp needs two more per term. With copies, barriers and the quantizer,
// a product takes 80 instructions for each block of a strip.
#include "../../async.cuh"
#include "../../packed.cuh"
#include "activations.cuh"
#include "../mma.cuh"

using namespace packed;

// z of a block from its half s: for no type here does it depend on the codes.
__device__ __forceinline__ float z_from(uint16_t s) { return z_of<FORMAT>(0.0f, half_to_float(s), 0.0f); }

#if TOKENS <= 4
constexpr int BLOCKS = 4, ROUND = WARPS * BLOCKS, HALF = ROUND / 2;  // of a warp and round; of a round; of half the warps
constexpr int WALKERS = TOKENS, THREADS = (WARPS + WALKERS) * 32, OF_HALF = (WARPS / 2 + WALKERS) * 32;
constexpr int SLOT = BLOCKS * PART;  // a warp's share of a round
constexpr int TERM_ROW = 36;         // stride between blocks' 32 terms, which avoids bank conflicts
constexpr int TERMS_AT = WARPS * STAGES * SLOT, MINIMA_AT = TERMS_AT + TOKENS * ROUND * TERM_ROW * 8;
constexpr int SCALES_AT = MINIMA_AT + (HAS_M ? TOKENS * ROUND * TERM_ROW * 4 : 0);
constexpr int X_AT = SCALES_AT + TOKENS * X_BLOCKS * 8;
static_assert(X_BLOCKS % ROUND == 0 && WARPS % 2 == 0, "parts of x are whole rounds");
enum { FULL = 1, EMPTY = 3 };  // barriers, one for each half of the warps

// A lane's part of a block of a strip: rows t, r (packed.cuh). Lanes of odd g read the two halves of 8-bit codes in the
// opposite order, so that eight lanes read from all banks: their tiles t are exchanged.
__device__ __forceinline__ Part part_of(const uint8_t* block, int lane) {
    uint4 words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
        words[i] = *(const uint4*)(block + (BYTES ? (lane * 32 + (lane & 4) * 4) ^ i * 16 : lane * 16));
    Part p;
    unpack(p, words);
    if (HAS_HIGH) p.high = ((const uint32_t*)(block + PART_HIGH))[lane];
    return p;
}

// Codes and scales of `count` blocks of each token of x, in shared memory, in the layout for lanes:
// codes[TOKENS][X_BLOCKS][4] {values 4c…, values 16+4c…}, scales[TOKENS][X_BLOCKS] {d, z}.
template <bool VALUES>
__device__ __forceinline__ void take_tokens(uint2* codes, float2* scales, const void* x, int tokens, int64_t blocks,
                                            int64_t first, int count) {
    const auto place = [&](int i) {
        const int token = TOKENS == 1 ? 0 : i / count, block = turned<VALUES>(i - token * count, count);
        return PlaceOfX{token * blocks + first + block, token * X_BLOCKS + block};
    };
    const auto store = [&](Sharer<VALUES> in, int to, int c, const PartOfX& part) {
        *in(codes + to * 4 + c) = {part.low, part.high};
        if (c == 0) *in(scales + to) = {part.scale(), z_from(part.s)};
    };
    take_x<VALUES, false, THREADS>(x, tokens * count, place, store);
}

template <bool VALUES>
__device__ __forceinline__ void run(const uint8_t* __restrict__ w, const void* __restrict__ x, float* __restrict__ y,
                                    int64_t M, int64_t N, int64_t blocks) {
    DYNAMIC_SHARED(shared);
    using Cluster = Sharers<VALUES ? CLUSTER : 1>;
    Cluster::begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int nb = (int)blocks, rounds = (nb + ROUND - 1) / ROUND;
    const int64_t strips = (N + ROWS - 1) / ROWS * 4, padded = (blocks + 1) / 2 * 2;
    const int64_t first_token = (int64_t)blockIdx.y * TOKENS;
    const int tokens = M - first_token < TOKENS ? (int)(M - first_token) : TOKENS;
    const int steps = (int)((strips - blockIdx.x + gridDim.x - 1) / gridDim.x) * rounds;
    float2* terms = (float2*)(shared + TERMS_AT);    // [TOKENS][ROUND][TERM_ROW], of 32 rows
    float* minima = (float*)(shared + MINIMA_AT);    // [TOKENS][ROUND][TERM_ROW], m·s
    float2* scales = (float2*)(shared + SCALES_AT);  // [TOKENS][X_BLOCKS], d and z
    uint2* x_codes = (uint2*)(shared + X_AT);        // [TOKENS][X_BLOCKS][4]
    uint8_t* ring = shared + warp * (STAGES * SLOT);
    __shared__ MBarrier all_full[BULK_COPIES ? WARPS * STAGES : 1];
    MBarrier* full = all_full + (BULK_COPIES ? warp * STAGES : 0);
    if (BULK_COPIES && warp < WARPS && lane == 0) {
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1);
        before_bulk_copies();
    }

    // The copies are STAGES rounds ahead.
    int64_t ahead = blockIdx.x;
    int at = warp * BLOCKS;
    const uint8_t* from = w + (ahead * padded + at) * PART;
    const auto fill = [&](int stage) {
        const int bytes = (nb - at < BLOCKS ? nb - at : BLOCKS) * PART;
        if (BULK_COPIES) {
            if (lane == 0 && ahead < strips) {
                if (bytes > 0) {
                    mbarrier_expect(&full[stage], bytes);
                    bulk_copy(ring + stage * SLOT, from, bytes, &full[stage]);
                } else {
                    mbarrier_arrive(&full[stage]);
                }
            }
        } else {
            if (ahead < strips)
                for (int i = lane * 16; i < bytes; i += 512) async_copy16(ring + stage * SLOT + i, from + i);
            async_commit();
        }
        at += ROUND, from += ROUND * PART;
        if (at - warp * BLOCKS >= nb) {
            at = warp * BLOCKS, ahead += gridDim.x;
            from = w + (ahead * padded + at) * PART;
        }
    };
    if (warp < WARPS) {
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) fill(i);
    }
    wait_for_last_launch();
    if (VALUES) x = (const float*)x + first_token * blocks * QK;
    else x = (const Q8_1*)x + first_token * blocks;
    Cluster::others_run();
    take_tokens<VALUES>(x_codes, scales, x, tokens, blocks, 0, VALUES || nb < X_BLOCKS ? nb : X_BLOCKS);
    Cluster::meet();
    let_next_launch_start();

    int base = 0, x_base = 0;  // the first block of this round, of all and of this part of x
    const auto begin_round = [&](int step) {
        if (base >= nb) base = x_base = 0;
        if (x_base == X_BLOCKS) x_base = 0;
        if (VALUES || nb <= X_BLOCKS || step == 0 || x_base) return;
        __syncthreads();
        take_tokens<false>(x_codes, scales, x, tokens, blocks, base, nb - base < X_BLOCKS ? nb - base : X_BLOCKS);
        __syncthreads();
    };
    if (warp < WARPS) {
        const int half = warp / (WARPS / 2), other = BYTES ? g & 1 : 0;
        int stage = 0, parity = 0;
        for (int step = 0; step < steps; ++step) {
            begin_round(step);
            if (BULK_COPIES) {
                mbarrier_wait(&full[stage], parity);
            } else {
                async_wait<STAGES - 1>();
                __syncwarp();
            }
            const uint8_t* slot = ring + stage * SLOT;
            Part p[BLOCKS];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) p[i] = part_of(slot + i * PART, lane);
            const uint2 d = ((const uint2*)(slot + c * PART + PART_D))[g];
            const uint2 m = HAS_M ? ((const uint2*)(slot + c * PART + PART_M))[g] : uint2{};
            before_bulk_copies();  // without it, 624 of 75,000 products on an H100 read weights of the next copy
            __syncwarp();
            fill(stage);
            uint32_t a[BLOCKS][2][4];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) byte_fragments(p[i], 0, a[i][0]), byte_fragments(p[i], 1, a[i][1]);
            const int first = x_base + warp * BLOCKS, out = (warp * BLOCKS + c) * TERM_ROW + g * 4;
#pragma unroll
            for (int token = 0; token < TOKENS; token += 2) {
                // Column 2i of the second operand, and 2i+1 for the next token, is block i's part of x in block i's
                // product, else zero: so all products add up in one place, and lane c ends with four rows of block c.
                const int mine = TOKENS == 1 ? 0 : token + g % 2;
                const uint2 x_part = x_codes[(mine * X_BLOCKS + first + g / 2) * 4 + c];
                int sums[2][4];
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[0][i] = sums[1][i] = INTEGER_BASE;
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) {
                    const uint32_t b[2] = {g / 2 == i ? x_part.x : 0, g / 2 == i ? x_part.y : 0};
                    mma_add(sums[0], a[i][0], b), mma_add(sums[1], a[i][1], b);
                }
                if (token == 0 && step > 0) barrier_sync(EMPTY + half, OF_HALF);
#pragma unroll
                for (int e = 0; e < (TOKENS == 1 ? 1 : 2); ++e) {
                    const float2 scale = scales[(token + e) * X_BLOCKS + first + c];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {  // tile i ^ other; for odd g they are stored in the opposite order
                        const int t = i ^ other, place = (token + e) * (ROUND * TERM_ROW) + out + (t ^ (g & 1)) * 2;
                        const float v0 = above_base(sums[i][e]), v1 = above_base(sums[i][2 + e]);
                        const float d0 = half_of(d, t, 0), d1 = half_of(d, t, 1);
                        float4 both;
                        if (FORMAT::MINIMUM == Minimum::OFFSET)
                            both = {d0, __fmaf_rn(scale.x, v0, scale.y), d1, __fmaf_rn(scale.x, v1, scale.y)};
                        else both = {__fmul_rn(d0, scale.x), v0, __fmul_rn(d1, scale.x), v1};
                        *(float4*)(terms + place) = both;
                        if (HAS_M) {
                            const float m0 = half_of(m, t, 0), m1 = half_of(m, t, 1);
                            *(float2*)(minima + place) = {__fmul_rn(m0, scale.y), __fmul_rn(m1, scale.y)};
                        }
                    }
                }
            }
            barrier_arrive(FULL + half, OF_HALF);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            parity ^= stage == 0;
            base += ROUND, x_base += ROUND;
        }
    } else {
        const int token = warp - WARPS;
        const float2* term = terms + token * (ROUND * TERM_ROW) + lane;
        const float* minimum = minima + token * (ROUND * TERM_ROW) + lane;
        float acc = 0.0f;
        const auto walk = [&](int i) {
            acc = __fmaf_rn(term[i * TERM_ROW].x, term[i * TERM_ROW].y, acc);
            if (HAS_M) acc = __fadd_rn(minimum[i * TERM_ROW], acc);  // m·s is exact
        };
        int64_t strip = blockIdx.x;
        for (int step = 0; step < steps; ++step) {
            begin_round(step);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int first = half * HALF, left = nb - base - first;
                barrier_sync(FULL + half, OF_HALF);
                if (left >= HALF) {
#pragma unroll
                    for (int i = 0; i < HALF; ++i) walk(first + i);
                } else {
#pragma unroll 1
                    for (int i = 0; i < left; ++i) walk(first + i);
                }
                if (step + 1 < steps) barrier_arrive(EMPTY + half, OF_HALF);
            }
            base += ROUND, x_base += ROUND;
            if (base < nb) continue;
            const int t = c / 2 ^ g & 1;
            const int64_t n = strip / 4 * ROWS + 64 * t + 16 * (strip % 4) + 8 * (c % 2) + g;
            if (n < N && token < tokens) y[(first_token + token) * N + n] = acc;
            acc = 0.0f, strip += gridDim.x;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm(const uint8_t* __restrict__ w,  // packed weights, strips
         const Q8_1* __restrict__ x,     // (M, blocks)
         float* __restrict__ y,          // (M, N)
         int64_t M, int64_t N, int64_t blocks) {
    run<false>(w, x, y, M, N, blocks);
}

// The same from values, of at most TOKENS tokens and X_BLOCKS blocks a row.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1)
    gemm_values(const uint8_t* __restrict__ w, const float* __restrict__ x, float* __restrict__ y, int64_t M, int64_t N,
                int64_t blocks) {
    run<true>(w, x, y, M, N, blocks);
}
#else
// Five to sixteen tokens have so many terms that passing them through shared memory would cost more than everything
// else. So a warp has eight rows of a strip and all of K, the sums stay in registers, and a loop gives the order. The
// tokens are the tensor cores' rows. The next launch may start only at the end: its blocks would be placed unevenly
// beside these.
constexpr int BLOCKS = 8, GROUPS = TOKENS / 8, X_BYTES = TOKENS * 40;  // of a block of x: codes, then d and z
constexpr int STAGE_W = BLOCKS * PART, STAGE = STAGE_W + BLOCKS * X_BYTES;

// The terms of a stage's blocks, the first `count` of them.
template <bool FULL>
__device__ __forceinline__ void add_stage(float (&acc)[GROUPS][4], const uint8_t* stage, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, t = warp / 2, r = warp % 2;
    uint32_t codes[BLOCKS][WORDS], high[BLOCKS], a[BLOCKS][4];
    float2 scales[BLOCKS][GROUPS];
    uint16_t d[BLOCKS][2], m[BLOCKS][2];
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        const uint8_t *part = stage + i * PART, *xs = stage + STAGE_W + i * X_BYTES;
        if (BYTES) {
            const uint2 both = *(const uint2*)(part + lane * 32 + t * 16 + r * 8);
            codes[i][0] = both.x, codes[i][WORDS - 1] = both.y;
        } else {
            codes[i][0] = *(const uint32_t*)(part + lane * 16 + t * 8 + r * 4);
        }
        if (HAS_HIGH) high[i] = ((const uint32_t*)(part + PART_HIGH))[lane];
        if (GROUPS == 2) {
            const uint4 four = ((const uint4*)xs)[lane];
            a[i][0] = four.x, a[i][1] = four.y, a[i][2] = four.z, a[i][3] = four.w;
        } else {
            const uint2 two = ((const uint2*)xs)[lane];
            a[i][0] = two.x, a[i][1] = 0, a[i][2] = two.y, a[i][3] = 0;
        }
#pragma unroll
        for (int k = 0; k < GROUPS; ++k) scales[i][k] = ((const float2*)(xs + TOKENS * 32))[8 * k + g];
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // of rows 2c and 2c+1: of quads 2c and 2c+1, [t][r]
            d[i][j] = ((const uint16_t*)(part + PART_D))[8 * c + 4 * j + warp];
            if (HAS_M) m[i][j] = ((const uint16_t*)(part + PART_M))[8 * c + 4 * j + warp];
        }
    }
    int sums[BLOCKS][4];
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        uint32_t b[2] = {codes[i][0], codes[i][WORDS - 1]};
        if (!BYTES) b[0] &= 0x0F0F0F0F, b[1] = b[1] >> 4 & 0x0F0F0F0F;
        if (HAS_HIGH) {
            const uint32_t bits = high[i] >> (4 * t + 2 * r);
            b[0] |= bits << 4 & 0x10101010, b[1] |= bits << 3 & 0x10101010;
        }
        mma(sums[i], a[i], b, INTEGER_BASE);
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        if (!FULL && i >= count) break;
        const float dw[2] = {half_to_float(d[i][0]), half_to_float(d[i][1])};
        const float mw[2] = {HAS_M ? half_to_float(m[i][0]) : 0.0f, HAS_M ? half_to_float(m[i][1]) : 0.0f};
#pragma unroll
        for (int k = 0; k < GROUPS; ++k)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float2 scale = scales[i][k];
                const float sum = above_base(sums[i][2 * k + j]);
                float& out = acc[k][j];
                if (FORMAT::MINIMUM == Minimum::OFFSET) out = __fmaf_rn(dw[j], __fmaf_rn(scale.x, sum, scale.y), out);
                else out = __fmaf_rn(__fmul_rn(dw[j], scale.x), sum, out);
                if (HAS_M) out = __fmaf_rn(mw[j], scale.y, out);
            }
    }
}

extern "C" __global__ void __launch_bounds__(128)
    gemm(const uint8_t* __restrict__ w,  // packed weights, strips
         const uint8_t* __restrict__ x,  // (token tiles, blocks) of tiled activations
         float* __restrict__ y,          // (M, N)
         int64_t M, int64_t N, int64_t blocks) {
    DYNAMIC_SHARED(ring);
    __shared__ MBarrier full[BULK_COPIES ? STAGES : 1];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int nb = (int)blocks, steps = (nb + BLOCKS - 1) / BLOCKS;
    const uint32_t strips = (uint32_t)((N + ROWS - 1) / ROWS * 4);
    const int64_t strip = blockIdx.x % strips, tile = blockIdx.x / strips;  // in x, since y is limited to 65,535
    const uint8_t* weights = w + strip * ((blocks + 1) / 2 * 2) * PART;
    const uint8_t* tokens = x + tile * blocks * X_BYTES;
    const auto count = [&](int step) { return nb - step * BLOCKS < BLOCKS ? nb - step * BLOCKS : BLOCKS; };
    // Part of a stage, of some bytes per block, copied by one thread or by all.
    const auto take = [&](int step, int at, const uint8_t* from, int bytes) {
        if (step >= steps) return;
        uint8_t* to = ring + step % STAGES * STAGE + at;
        from += (int64_t)step * BLOCKS * bytes;
        if (BULK_COPIES) {
            if (thread == 0) bulk_copy(to, from, count(step) * bytes, &full[step % STAGES]);
        } else {
            for (int i = thread * 16; i < count(step) * bytes; i += 128 * 16) async_copy16(to + i, from + i);
        }
    };
    const auto expect = [&](int step) {
        if (BULK_COPIES && thread == 0 && step < steps)
            mbarrier_expect(&full[step % STAGES], count(step) * (PART + X_BYTES));
    };
    if (BULK_COPIES && thread == 0) {
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1);
        before_bulk_copies();
    }
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) expect(i), take(i, 0, weights, PART);
    wait_for_last_launch();
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
        take(i, STAGE_W, tokens, X_BYTES);
        if (!BULK_COPIES) async_commit();
    }
    if (BULK_COPIES) __syncthreads();  // the barriers are initialised

    float acc[GROUPS][4] = {};  // tokens g and g + 8, rows 2c and 2c+1 of eight
    int parity = 0;
    for (int step = 0; step < steps; ++step) {
        const int slot = step % STAGES;
        if (BULK_COPIES) {
            mbarrier_wait(&full[slot], parity);
            parity ^= slot == STAGES - 1;
        } else {
            async_wait<STAGES - 1>();
            __syncthreads();
        }
        const uint8_t* stage = ring + slot * STAGE;
        if (count(step) == BLOCKS) add_stage<true>(acc, stage, BLOCKS);
        else add_stage<false>(acc, stage, count(step));
        before_bulk_copies();
        __syncthreads();
        expect(step + STAGES);
        take(step + STAGES, 0, weights, PART), take(step + STAGES, STAGE_W, tokens, X_BYTES);
        if (!BULK_COPIES) async_commit();
    }
    let_next_launch_start();
    // of the four rows that a lane has codes of, warp 2t + r has this one
    const int64_t first_row = strip / 4 * ROWS + 64 * (warp / 2) + 16 * (strip % 4) + 8 * (warp % 2) + 2 * c;
#pragma unroll
    for (int k = 0; k < GROUPS; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int64_t m = tile * TOKENS + 8 * k + g, n = first_row + j;
            if (m < M && n < N) y[m * N + n] = acc[k][j];
        }
}

// Activations in the layout for `gemm`, from values or from Q8_1: tiles of TOKENS, one chunk per block,
//
//     chunk    codes[8 g][4 c][low of token g, of token g + 8, high of g, of g + 8] words    scales[TOKENS]{d, z}
//
// (with 8 tokens: low and high of token g). Four threads per block.
template <bool VALUES>
__device__ __forceinline__ void tile_tokens(const void* x, uint8_t* out, int64_t M, int64_t blocks) {
    wait_for_last_launch();
    let_next_launch_start();
    const int c = threadIdx.x % 4, token = threadIdx.x / 4 % 8;  // a warp: eight tokens, one block
    const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
    const int64_t all = (M + TOKENS - 1) / TOKENS * GROUPS * blocks;
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < all; i += warps) {
        const int64_t b = i % blocks, group = i / blocks, m = group * 8 + token;
        uint32_t low = 0, high = 0;
        float2 scale = {0.0f, 0.0f};
        if (VALUES) {
            const float4* values = (const float4*)x + (m * blocks + b) * 8 + c;
            const float4 own[2] = {m < M ? values[0] : float4{}, m < M ? values[4] : float4{}};
            const Quantized p = quantized(own, c);
            low = four_bytes(p.q), high = four_bytes(p.q + 4);
            scale = {half_to_float(float_to_half(p.d)), z_from(float_to_half(p.s))};
        } else if (m < M) {
            const uint32_t* block = (const uint32_t*)((const Q8_1*)x + m * blocks + b);
            low = block[1 + c], high = block[5 + c];
            scale = {half_to_float((uint16_t)block[0]), z_from((uint16_t)(block[0] >> 16))};
        }
        uint8_t* chunk = out + (group / GROUPS * blocks + b) * X_BYTES;
        uint32_t* codes = (uint32_t*)chunk + (threadIdx.x % 32) * (2 * GROUPS) + group % GROUPS;
        codes[0] = low, codes[GROUPS] = high;
        if (c == 0) ((float2*)(chunk + TOKENS * 32))[group % GROUPS * 8 + token] = scale;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tile(const Q8_1* __restrict__ x,  // (M, blocks)
         uint8_t* __restrict__ out, int64_t M, int64_t blocks) {
    tile_tokens<false>(x, out, M, blocks);
}
extern "C" __global__ void __launch_bounds__(256)
    tile_values(const float* __restrict__ x,  // (M, 32·blocks)
                uint8_t* __restrict__ out, int64_t M, int64_t blocks) {
    tile_tokens<true>(x, out, M, blocks);
}
#endif
