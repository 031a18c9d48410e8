// 07 pipelined tensor cores, for Hopper (sm_90a): like 06, but no warp waits for operands, and the tensor cores return
// float32.
//
// A slice of 32 values costs a lane two or three float operations per output, whatever multiplies the codes; twice as
// many if at most 16 values share a scale. These limit a multiprocessor of 128 lanes, not its tensor cores. So
// everything else must be removed from the instruction stream:
//
//   - `wgmma` reads its second operand from shared memory, where the copy engine has put it; one instruction multiplies
//     64 rows by half of the tokens. 06 needs an mma, and loads of fragments, for 16 × 8 outputs.
//   - Halves replace bytes: codes are integers, sums of 32 products stay below 2^24, and float32 sums of integers are
//     exact in any order. The sum is already the float that accumulate() takes; 06 converts each sum.
//   - Weights are packed and activations are tiled (packed.cuh): a lane gets its fragment with one load of 16 bytes,
//     and one mask turns a 4-bit code into a half. Codes and scales of every type were unpacked beforehand.
//   - A producer warp keeps a ring of stages of two slices filled with bulk copies. Consumers synchronize with it only
//     by barriers in shared memory. It releases its registers to them.
//   - The terms of half of the tokens are added while the products of the other half are computed. Types without z and
//     with one scale per slice have registers for 128 tokens instead, so that weights are unpacked half as often.
//
// A multiprocessor needs, for a stage and 256 rows by 64 tokens of Q4_0: 9.2 KB of weights and 9.2 KB of activations
// for 2.1 MFLOP; 512 cycles of the tensor cores; 800 instructions per scheduler, 512 of them for terms; 16 loads of 16
// bytes of scales per warp, at 4 cycles each whatever the lanes share: 512 cycles. Measured on one H200 (M = N = K =
// 4096): 427 µs. A version that computes no products while it adds terms takes 455 µs: 244 without terms, 275 without
// products, 400 without the loads of scales. It issues an instruction in 49 % of its 1,600 cycles per stage; float
// operations fill 33 %, tensor cores 32 %, loads from shared memory 54 %. So products and terms hardly overlap, and no
// unit is saturated. Three variants were slower: warpgroups that take turns by barriers, more warps on smaller tiles,
// and scales that an additional product distributes instead of loads. Two more were no better with 512 tokens and N =
// 14336: a warpgroup on four tiles of rows and half of the tokens, which halves the loads of scales (242 µs instead of
// 207, Q4_0), and two stages per iteration, so that products are pending between them (245 µs; MXFP4 4 % faster, but
// slower than with 128 tokens).
//
// The order and the bits are those of 01.
#include "async.cuh"
#include "packed.cuh"

// A step is the values of a stage under one scale: a slice, or half of one. Both tiles of 64 rows of a warpgroup
// multiply one piece of the tokens at a time. If registers allow, a second piece is multiplied while the terms of the
// first are added; for terms with one operation less, the registers suffice for twice the tokens instead.
constexpr int STEPS = 2 * packed::SLICE_GROUPS, PRODUCTS = 2 / packed::SLICE_GROUPS;  // of 16 values, of a step
constexpr int BUFFERS = TOKENS == 64 ? 2 : 1, PIECES = TOKENS >= 64 ? 2 : 1, PIECE = TOKENS / PIECES, UNITS = STEPS * PIECES;
constexpr int COUNT = PIECE / 2, CONSUMERS = WARPGROUPS * 128, PRODUCERS = CTAS == 1 ? 128 : 32;  // a lane's outputs
constexpr int TOKEN_BYTES = packed::chunk_bytes(TOKENS), WEIGHT_BYTES = 2 * packed::CHUNK;  // of a stage
constexpr int WEIGHTS_AT = (TOKEN_BYTES + 127) / 128 * 128, SLOT = (WEIGHTS_AT + WARPGROUPS * WEIGHT_BYTES + 1023) / 1024 * 1024;
#ifndef PART_STAGES
#define PART_STAGES 0
#endif
static_assert(STAGES * SLOT * CTAS <= 200 * 1024 && STAGES > 1, "the ring fits in shared memory");

// d and z of a lane's tokens of a piece: two of every eight.
struct TokenScales {
    float d[COUNT / 4][2], z[COUNT / 4][2];

    // Of a step's tokens from `first` on.
    __device__ __forceinline__ void load(const uint8_t* scales, int step, int first, int c) {
        using namespace packed;
        const int slice = step / SLICE_GROUPS, set = Z_GROUPS == 2 ? step : slice, at = (set * TOKENS + first) / 2 + c;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            if (HAS_Z) {
                const float4 two = ((const float4*)scales)[at + 4 * j];
                d[j][0] = two.x, z[j][0] = two.y, d[j][1] = two.z, z[j][1] = two.w;
            } else {
                const float2 two = ((const float2*)scales)[at + 4 * j];
                d[j][0] = two.x, d[j][1] = two.y, z[j][0] = z[j][1] = 0.0f;
            }
        }
    }
};

// Terms of one step for a tile and a piece.
__device__ __forceinline__ void add_terms(float (&acc)[COUNT], const float (&sums)[COUNT], const TokenScales& tokens,
                                          const float (&dw)[2], const float (&mw)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int j = i / 4, e = i % 2, r = i / 2 % 2;
        acc[i] = add_term<FORMAT>(acc[i], dw[r], mw[r], tokens.d[j][e], tokens.z[j][e], sums[i]);
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, CTAS)
    gemm(const uint8_t* __restrict__ w,  // packed weights
         const uint8_t* __restrict__ x,  // tiled activations
         float* __restrict__ y,          // (M, N); of 09, (parts, M·N, to a multiple of 4)
         int64_t M, int64_t N, int64_t stages
#ifdef EXPERTS  // w is of all experts; outputs of token m go to slots[m] of y (used, N), if that is below `used`
         ,
         const int32_t* __restrict__ slots, const int32_t* __restrict__ experts, int64_t used
#endif
    ) {
    using namespace packed;
    const int first = PART_STAGES * blockIdx.y;  // PART_STAGES = 0: all of K is one part
    const int left = (int)stages - first, count = PART_STAGES && PART_STAGES < left ? PART_STAGES : left;
    DYNAMIC_SHARED(ring);
    __shared__ MBarrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS);
    mbarrier_init_done();

    // Blocks that run at the same time share rows and tokens: eight tiles of rows by all tokens, then the next eight.
    const int tiles = (int)((N + ROWS - 1) / ROWS), row_tiles = (tiles + WARPGROUPS - 1) / WARPGROUPS;
    const uint32_t token_tiles = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int band = (int)(blockIdx.x / 8 / token_tiles), in_band = (int)(blockIdx.x - band * 8 * token_tiles);
    const int wide = row_tiles - band * 8 < 8 ? row_tiles - band * 8 : 8;
    const int row_tile = band * 8 + in_band % wide, token_tile = in_band / wide;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
#ifdef EXPERTS
    wait_for_last_launch();  // the routing is its result
    if (experts[token_tile] < 0) return;
    w += experts[token_tile] * tiles * stages * WEIGHT_BYTES;
#endif

    if (group == WARPGROUPS) {
        if (CTAS == 1) fewer_registers<24>();
        if (thread == 0) {
            const uint8_t* tokens = x + (token_tile * stages + first) * TOKEN_BYTES;
            const auto take_weights = [&](int s, int slot) {
                mbarrier_expect(&full[slot], TOKEN_BYTES + WARPGROUPS * WEIGHT_BYTES);
                for (int i = 0; i < WARPGROUPS; ++i) {  // the last tile replaces one past the end
                    const int tile = row_tile * WARPGROUPS + i < tiles ? row_tile * WARPGROUPS + i : tiles - 1;
                    bulk_copy(ring + slot * SLOT + WEIGHTS_AT + i * WEIGHT_BYTES,
                              w + (tile * stages + first + s) * WEIGHT_BYTES, WEIGHT_BYTES, &full[slot]);
                }
            };
            const auto take_tokens = [&](int s, int slot) {
                bulk_copy(ring + slot * SLOT, tokens + (int64_t)s * TOKEN_BYTES, TOKEN_BYTES, &full[slot]);
            };
            const int begun = count < STAGES ? count : STAGES;
            for (int s = 0; s < begun; ++s) take_weights(s, s);
            wait_for_last_launch();
            for (int s = 0; s < begun; ++s) take_tokens(s, s);
            int slot = 0, parity = 0;
            for (int s = STAGES; s < count; ++s) {
                mbarrier_wait(&empty[slot], parity);
                take_weights(s, slot), take_tokens(s, slot);
                slot = slot + 1 == STAGES ? 0 : slot + 1;
                parity ^= slot == 0;
            }
        }
        return;
    }
    if (CTAS == 1) more_registers<240>();

    const int c = thread % 4;
    float acc[2][PIECES][COUNT] = {}, sums[BUFFERS][2][COUNT];  // [tile]
    uint32_t a[BUFFERS][2][PRODUCTS][4];                        // [tile]
    float dw[BUFFERS][2][2], mw[BUFFERS][2][2];                 // [tile][r]
    TokenScales scales[BUFFERS];
    Part codes;
    int slot = 0, parity = 0;
    const uint8_t* stage = ring;

    const auto prepare = [&](int step) {
        const int slice = step / SLICE_GROUPS, h = step % SLICE_GROUPS, k = step % BUFFERS;
        const uint8_t* chunk = stage + WEIGHTS_AT + group * WEIGHT_BYTES + slice * CHUNK;
        if (h == 0) codes = load(chunk, thread);
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
            for (int i = 0; i < PRODUCTS; ++i) half_fragment(codes, t, h + i, a[k][t][i]);
        load_scales(dw[k], chunk + D_AT, h, thread);
        if (HAS_M) load_scales(mw[k], chunk + M_AT, h, thread);
    };
    // Unit u is piece u % PIECES of step u / PIECES.
    const auto issue = [&](int u) {
        const int step = u / PIECES, piece = u % PIECES, k = step % BUFFERS, buffer = u % BUFFERS;
        const SharedMatrix b = part(shared_matrix(stage), piece * PIECE, step * (16 * PRODUCTS));
#pragma unroll
        for (int i = 0; i < 2 * PRODUCTS; ++i) pin(a[k][i / PRODUCTS][i % PRODUCTS]);
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            wgmma<false>(sums[buffer][t], a[k][t][0], b);
            if (PRODUCTS == 2) wgmma<true>(sums[buffer][t], a[k][t][PRODUCTS - 1], part(b, 0, 16));
        }
        wgmma_commit();
        // before the wait for the products, if registers allow: shared memory is slow while these run
        if (COUNT < 32) scales[buffer].load(stage + TOKENS * 128, step, piece * PIECE, c);
    };
    const auto finish = [&](int u) {
        const int step = u / PIECES, k = step % BUFFERS, piece = u % PIECES, buffer = u % BUFFERS;
#pragma unroll
        for (int t = 0; t < 2; ++t) wgmma_ready(sums[buffer][t]);
        if (COUNT >= 32) scales[buffer].load(stage + TOKENS * 128, step, piece * PIECE, c);
#pragma unroll
        for (int t = 0; t < 2; ++t) add_terms(acc[t][piece], sums[buffer][t], scales[buffer], dw[k][t], mw[k][t]);
    };

    // No product is pending between stages: the compiler would serialize products that outlive an iteration.
    for (int s = 0; s < count; ++s) {
        mbarrier_wait(&full[slot], parity);
        prepare(0);
        if (BUFFERS == 2) {
            issue(0), issue(1);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (u % PIECES == 0 && u + PIECES < UNITS) prepare(u / PIECES + 1);
                if (u + 1 < UNITS) wgmma_wait<1>();
                else wgmma_wait<0>();
                finish(u);
                if (u + 2 < UNITS) issue(u + 2);
            }
        } else {
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (u > 0 && u % PIECES == 0) prepare(u / PIECES);
                issue(u);
                wgmma_wait<0>();
                finish(u);
            }
        }
        mbarrier_arrive(&empty[slot]);  // every lane arrives: one per warp is no faster, and racecheck cannot follow it
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
        stage = ring + slot * SLOT;
    }

    let_next_launch_start();
    y += (M * N + 3) / 4 * 4 * blockIdx.y;
    const int64_t first_row = (int64_t)(row_tile * WARPGROUPS + group) * ROWS + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int64_t n = first_row + 64 * t + 8 * (i / 2 % 2);
                const int64_t m = (int64_t)token_tile * TOKENS + piece * PIECE + i / 4 * 8 + 2 * c + i % 2;
#ifdef EXPERTS
                if (n < N && slots[m] < used) y[slots[m] * N + n] = acc[t][piece][i];
#else
                if (n < N && m < M) y[m * N + n] = acc[t][piece][i];
#endif
            }
}
