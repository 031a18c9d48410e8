// 11 columns: three to eight tokens. With them 08 and 10 are limited not by memory but by instructions: 08 passes each
// term through shared memory to the warps that add, or (5 to 16 tokens) has four warps per thread block and another
// launch for the activations. Here the tokens are the columns of the tensor cores' product, and an output stays in one
// place:
//
//   - The layout is that of 08, strips of 32 rows. Two warps share a slot of the ring and have 16 rows of it each, so a
//     warp's product of a block is one `mma`: 16 rows by eight columns, of which TOKENS differ. A lane gets the sums of
//     two rows and two tokens, and computes their terms in registers.
//   - The pairs of warps have different units of K, of BLOCKS blocks. As in 10, the sums of the rows so far are a baton
//     that is passed from pair to pair, and only its holder adds, in ascending k, as in 01.
//   - The thread blocks of a cluster quantize x together in the same launch, launches overlap, and thread blocks
//     continue with further strips.
//
// There is no deadlock. The terms of units are added in order, strip after strip; each unit waits for the baton of the
// previous one and for its weights. Their copy begins once both warps have read the slot's previous contents, from an
// earlier unit of the same pair, which they do before they wait for that unit's baton. So the first unfinished unit has
// everything that it waits for. Parts of x are replaced between rounds, when all units of the previous round are done
// or need nothing but batons.
//
// Measured on one H100 (K = 4096, µs, in parentheses the time of 08): M = 8, N = 4096: Q4_0 8.7 (11.9), Q5_0 9.4
// (12.8), Q4_1 10.0 (13.0); N = 14336: Q4_0 16.4 (20.1), Q8_0 24.1 (27.8), Q4_1 17.8 (22.8). M = 4: Q4_1 16.3 (18.5)
// and, with N = 4096, 8.6 (9.1). Minima take more registers, so their types have thread blocks of eight warps, two per
// multiprocessor; the others have sixteen, one per multiprocessor.
#include "../../async.cuh"
#include "../../packed.cuh"
#include "activations.cuh"
#include "../mma.cuh"

using namespace packed;

constexpr int SLOTS = WARPS / 2, ROUND = SLOTS * BLOCKS, THREADS = WARPS * 32;  // blocks that all pairs have at a time
constexpr int SLOT = BLOCKS * PART;                                             // a unit's weights
constexpr int BATONS_AT = SLOTS * STAGES * SLOT, SCALES_AT = BATONS_AT + 1024;
constexpr int X_AT = SCALES_AT + TOKENS * X_BLOCKS * 8;
constexpr bool OFFSET = FORMAT::MINIMUM == Minimum::OFFSET;
static_assert(BULK_COPIES, "the copies of a slot are awaited by two warps");
static_assert(X_BLOCKS % ROUND == 0 && WARPS % 2 == 0, "parts of x are whole rounds");
static_assert(TOKENS == 2 || TOKENS == 4 || TOKENS == 8, "columns repeat the tokens");

// z of a block from its half s: for no type here does it depend on the codes.
__device__ __forceinline__ float z_from(uint16_t s) { return z_of<FORMAT>(0.0f, half_to_float(s), 0.0f); }

// `count` blocks of each token from block `first` on, of `tokens` tokens; the others are zero:
// codes[X_BLOCKS][TOKENS][4] {values 4c…, values 16+4c…}, scales[X_BLOCKS][TOKENS] {d, z}.
template <bool VALUES>
__device__ __forceinline__ void take_tokens(uint2* codes, float2* scales, const void* x, int tokens, int64_t blocks,
                                            int64_t first, int count) {
    const auto place = [&](int i) {
        const int token = i % TOKENS, block = turned<VALUES>(i / TOKENS, count);
        return PlaceOfX{token < tokens ? token * blocks + first + block : -1, block * TOKENS + token};
    };
    const auto store = [&](Sharer<VALUES> in, int to, int c, const PartOfX& part) {
        *in(codes + to * 4 + c) = {part.low, part.high};
        if (c == 0) *in(scales + to) = {part.scale(), z_from(part.s)};
    };
    take_x<VALUES, false, THREADS>(x, TOKENS * count, place, store);
}

// The codes of a block of the strip, of rows g and g + 8 of tile t, as the product's first operand.
__device__ __forceinline__ void rows_of(const uint8_t* part, int lane, int t, uint32_t (&a)[4]) {
    if (BYTES) {
        const uint4 four = *(const uint4*)(part + lane * 32 + t * 16);
        a[0] = four.x, a[2] = four.y, a[1] = four.z, a[3] = four.w;
    } else {
        const uint2 two = *(const uint2*)(part + lane * 16 + t * 8);
        a[0] = two.x & 0x0F0F0F0F, a[2] = two.x >> 4 & 0x0F0F0F0F;
        a[1] = two.y & 0x0F0F0F0F, a[3] = two.y >> 4 & 0x0F0F0F0F;
    }
    if (HAS_HIGH) {
        const uint32_t bits = ((const uint32_t*)(part + PART_HIGH))[lane] >> 4 * t;
        a[0] |= bits << 4 & 0x10101010, a[2] |= bits << 3 & 0x10101010;
        a[1] |= bits << 2 & 0x10101010, a[3] |= bits << 1 & 0x10101010;
    }
}

// The terms of a block for the rows g and g + 8 and two tokens, as far as they do not depend on the sums so far
// (add_term in common.cuh).
struct Terms {
    float factor[OFFSET ? 2 : 4], value[4], z[2];
    uint32_t minima;  // two halves

    __device__ __forceinline__ void add(float (&acc)[4]) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            acc[j] = __fmaf_rn(factor[OFFSET ? j / 2 : j % (OFFSET ? 2 : 4)], value[j], acc[j]);
            if (HAS_M) acc[j] = __fmaf_rn(half_to_float((uint16_t)(minima >> 16 * (j / 2))), z[j % 2], acc[j]);
        }
    }
};

template <bool VALUES>
__device__ __forceinline__ void run(const uint8_t* __restrict__ w, const void* __restrict__ x, float* __restrict__ y,
                                    int64_t M, int64_t N, int64_t blocks, int64_t of_tile) {
    DYNAMIC_SHARED(shared);
    using Cluster = Sharers<VALUES ? CLUSTER : 1>;
    Cluster::begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    // lanes of other rows read the two tiles in the opposite order, so that eight lanes read from all banks
    const int half = warp % 2, slot = warp / 2, t = half ^ (BYTES ? g & 1 : g >> 1 & 1);
    const int nb = (int)blocks, units = (nb + BLOCKS - 1) / BLOCKS, rounds = (units + SLOTS - 1) / SLOTS;
    const int64_t strips = (N + ROWS - 1) / ROWS * 4, padded = (blocks + 1) / 2 * 2;
    const int64_t first_strip = blockIdx.x % of_tile, first_token = blockIdx.x / of_tile * TOKENS;
    const int tokens = M - first_token < TOKENS ? (int)(M - first_token) : TOKENS;
    const int64_t steps = (strips - first_strip + of_tile - 1) / of_tile * rounds;
    float4* batons = (float4*)(shared + BATONS_AT);  // [2 warps of a pair][32]
    float2* scales = (float2*)(shared + SCALES_AT);
    uint2* codes = (uint2*)(shared + X_AT);
    uint8_t* ring = shared + slot * (STAGES * SLOT);
    __shared__ MBarrier all_full[SLOTS * STAGES], all_empty[SLOTS * STAGES];
    MBarrier *full = all_full + slot * STAGES, *empty = all_empty + slot * STAGES;
    if (half == 0 && lane == 0) {
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 2);
        before_bulk_copies();
    }

    // The copies are STAGES units ahead; the pair's first warp begins them.
    int64_t ahead = first_strip;
    int ahead_unit = slot;
    const auto fill = [&](int stage) {
        if (ahead_unit >= units) ahead_unit = slot, ahead += of_tile;
        if (ahead < strips && lane == 0) {
            const int first = ahead_unit * BLOCKS, count = nb - first < BLOCKS ? nb - first : BLOCKS;
            mbarrier_expect(&full[stage], count * PART);
            bulk_copy(ring + stage * SLOT, w + (ahead * padded + first) * PART, count * PART, &full[stage]);
        }
        ahead_unit += SLOTS;
    };
    if (half == 0 && slot < units) {
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) fill(i);
    }
    wait_for_last_launch();
    if (VALUES) x = (const float*)x + first_token * blocks * QK;
    else x = (const Q8_1*)x + first_token * blocks;
    Cluster::others_run();
    take_tokens<VALUES>(codes, scales, x, tokens, blocks, 0, VALUES || nb < X_BLOCKS ? nb : X_BLOCKS);
    Cluster::meet();
    let_next_launch_start();

    int stage = 0, parity = 0, round = 0, x_base = 0;  // x_base: the block of x on chip at which the round begins
    int64_t strip = first_strip;
    for (int64_t step = 0; step < steps; ++step, ++round, x_base += ROUND) {
        if (round == rounds) round = x_base = 0, strip += of_tile;
        if (x_base == X_BLOCKS) x_base = 0;
        if (!VALUES && nb > X_BLOCKS && step > 0 && x_base == 0) {
            const int first = round * ROUND, left = nb - first;
            __syncthreads();
            take_tokens<false>(codes, scales, x, tokens, blocks, first, left < X_BLOCKS ? left : X_BLOCKS);
            __syncthreads();
        }
        const int unit = round * SLOTS + slot;
        if (unit >= units) continue;
        const int count = nb - unit * BLOCKS < BLOCKS ? nb - unit * BLOCKS : BLOCKS, first = x_base + slot * BLOCKS;
        mbarrier_wait(&full[stage], parity);

        Terms terms[BLOCKS];
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const uint8_t* part = ring + stage * SLOT + i * PART;
            uint32_t a[4];
            rows_of(part, lane, t, a);
            const uint32_t of_rows = ((const uint32_t*)(part + PART_D))[2 * g + t];
            terms[i].minima = HAS_M ? ((const uint32_t*)(part + PART_M))[2 * g + t] : 0;
            const uint2 x_part = codes[((first + i) * TOKENS + g % TOKENS) * 4 + c];
            const uint32_t b[2] = {x_part.x, x_part.y};
            int sums[4];
            mma(sums, a, b, INTEGER_BASE);
            const float4 of_x = *(const float4*)(scales + (first + i) * TOKENS + 2 * c % TOKENS);
            const float dx[2] = {of_x.x, of_x.z};
            terms[i].z[0] = of_x.y, terms[i].z[1] = of_x.w;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float of_row = half_to_float((uint16_t)(of_rows >> 16 * r));
                if (OFFSET) terms[i].factor[r] = of_row;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = 2 * r + e;
                    const float sum = above_base(sums[j]);
                    terms[i].value[j] = OFFSET ? __fmaf_rn(dx[e], sum, terms[i].z[e]) : sum;
                    if (!OFFSET) terms[i].factor[j % (OFFSET ? 2 : 4)] = __fmul_rn(of_row, dx[e]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&empty[stage]);

        // Its turn. The pair with a strip's last unit passes the baton to the one that begins the next strip, and both
        // may be the same.
        const bool begins = unit == 0, ends = unit == units - 1;
        if (begins ? step > 0 && (units - 1) % SLOTS != 0 : true) barrier_sync(1 + slot, 128);
        const float4 baton = begins ? float4{} : batons[half * 32 + lane];
        float acc[4] = {baton.x, baton.y, baton.z, baton.w};
        if (count == BLOCKS) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) terms[i].add(acc);
        } else {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                if (i < count) terms[i].add(acc);
        }
        if (!ends) batons[half * 32 + lane] = {acc[0], acc[1], acc[2], acc[3]};
        const int next = ends ? 0 : (slot + 1) % SLOTS;
        if (next != slot && !(ends && strip + of_tile >= strips)) barrier_arrive(1 + next, 128);
        if (ends) {
            const int64_t n = strip / 4 * ROWS + 64 * t + 16 * (strip % 4) + g;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int token = 2 * c + j % 2;
                if (token < tokens && n + j / 2 * 8 < N) y[(first_token + token) * N + n + j / 2 * 8] = acc[j];
            }
        }
        if (half == 0) {
            mbarrier_wait(&empty[stage], parity);
            fill(stage);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    gemm(const uint8_t* __restrict__ w,  // packed weights, strips
         const Q8_1* __restrict__ x,     // (M, blocks)
         float* __restrict__ y,          // (M, N)
         int64_t M, int64_t N, int64_t blocks,
         int64_t of_tile) {  // thread blocks of each tile of TOKENS
    run<false>(w, x, y, M, N, blocks, of_tile);
}

// The same from values, of at most X_BLOCKS blocks a row.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, CTAS)
    gemm_values(const uint8_t* __restrict__ w, const float* __restrict__ x, float* __restrict__ y, int64_t M, int64_t N,
                int64_t blocks, int64_t of_tile) {
    run<true>(w, x, y, M, N, blocks, of_tile);
}
