// 07 pipelined tensor cores, for Hopper (sm_90a): as 06, but no warp waits for operands, and the tensor cores return
// float32.
//
// A block of 32 values costs a lane two or three float operations an output, whatever multiplies the codes. These bound
// a multiprocessor of 128 lanes, not its tensor cores. So everything else must leave the instruction stream:
//
//   - `wgmma` takes its second operand from shared memory, where the copy engine has put it; one instruction multiplies
//     64 rows by half of the tokens. 06 spends an mma, and loads of fragments, on 16 × 8 outputs.
//   - Halves replace bytes: codes are integers, sums of 32 products stay below 2^24, and float32 sums of integers are
//     exact in any order. The sum arrives as the float that accumulate() takes; 06 converts each sum.
//   - Weights are packed and activations are tiled (packed.cuh): a lane gets its fragment with one load of 16 bytes, and
//     one mask turns a 4-bit code into a half.
//   - A producer warp keeps a ring of stages of two blocks filled by bulk copies. Consumers synchronize with it only by
//     barriers in shared memory. It gives up its registers to them.
//   - The terms of half of the tokens are added while the products of the other half are computed. Q8_0, which needs no
//     z, has registers for 128 tokens instead, so that its weights are unpacked half as often.
//
// A multiprocessor needs, for a stage and 256 rows by 64 tokens of Q4_0: 9.2 KB of weights and 9.2 KB of activations for
// 2.1 MFLOP; 512 cycles of the tensor cores; 800 instructions a scheduler, 512 of them for terms; 16 loads of 16 bytes of
// scales a warp, at 4 cycles each whatever the lanes share: 512 cycles. Measured on one H200 (M = N = K = 4096): 427 µs.
// A version that computes no products while it adds terms takes 455 µs: 244 without terms, 275 without products, 400
// without the loads of scales. It issues an instruction in 49 % of its 1,600 cycles a stage; float operations fill 33 %,
// tensor cores 32 %, loads from shared memory 54 %. So products and terms hardly overlap, and no unit is full.
// Three variants were slower: warpgroups that take turns by barriers, more warps on smaller tiles, and scales that a
// further product hands out instead of loads.
//
// The order is that of 01, and so are the bits.
#include "packed.cuh"
#include "hopper.cuh"

// Both tiles of 64 rows of a warpgroup multiply one piece of the tokens at a time. Where registers allow, a second piece
// is multiplied while the terms of the first are added; without z they suffice for twice the tokens instead.
constexpr bool HAS_Z = FORMAT::MINIMUM != Minimum::NONE;
constexpr int BUFFERS = TOKENS == 64 && HAS_Z ? 2 : 1, PIECES = BUFFERS == 2 || TOKENS > 64 ? 2 : 1, PIECE = TOKENS / PIECES;
constexpr int COUNT = PIECE / 2, CONSUMERS = WARPGROUPS * 128, PRODUCERS = CTAS == 1 ? 128 : 32;  // a lane's outputs
constexpr int TOKEN_BYTES = packed::chunk_bytes(TOKENS), WEIGHT_BYTES = 2 * packed::CHUNK;  // of a stage
constexpr int WEIGHTS_AT = (TOKEN_BYTES + 127) / 128 * 128, SLOT = (WEIGHTS_AT + WARPGROUPS * WEIGHT_BYTES + 1023) / 1024 * 1024;
#ifndef PART_STAGES
#define PART_STAGES 0
#endif
static_assert(STAGES * SLOT * CTAS <= 200 * 1024 && STAGES > 1, "the ring fits in shared memory");

// Terms of one block for a tile and a piece: acc += d_w·(d_a·Σ + z), or as the format's minimum asks.
__device__ __forceinline__ void add_terms(float (&acc)[COUNT], const float (&sums)[COUNT], const float4 (&scales)[COUNT / 4],
                                          const float (&dw)[2], const float (&mw)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float4 of_two = scales[i / 4];  // d, z, d, z of two tokens
        const float da = i % 2 ? of_two.z : of_two.x, z = i % 2 ? of_two.w : of_two.y;
        const int r = i / 2 % 2;
        if (FORMAT::MINIMUM == Minimum::OFFSET) {
            acc[i] = __fmaf_rn(dw[r], __fmaf_rn(da, sums[i], z), acc[i]);
        } else {
            acc[i] = __fmaf_rn(__fmul_rn(dw[r], da), sums[i], acc[i]);
            if (packed::HAS_M) acc[i] = __fmaf_rn(mw[r], z, acc[i]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, CTAS)
    gemm(const uint8_t* __restrict__ w,  // packed weights
         const uint8_t* __restrict__ x,  // tiled activations
         float* __restrict__ y,          // (M, N); of 09, (parts, M·N, to a multiple of 4)
         int64_t M, int64_t N, int64_t stages) {
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

    if (group == WARPGROUPS) {
        if (CTAS == 1) fewer_registers<24>();
        if (thread == 0) {
            const uint8_t* tokens = x + (token_tile * stages + first) * TOKEN_BYTES;
            int slot = 0, parity = 1;
            for (int s = 0; s < count; ++s) {
                uint8_t* to = ring + slot * SLOT;
                mbarrier_wait(&empty[slot], parity);
                mbarrier_expect(&full[slot], TOKEN_BYTES + WARPGROUPS * WEIGHT_BYTES);
                bulk_copy(to, tokens + (int64_t)s * TOKEN_BYTES, TOKEN_BYTES, &full[slot]);
                for (int i = 0; i < WARPGROUPS; ++i) {  // the last tile replaces one past the end
                    const int tile = row_tile * WARPGROUPS + i < tiles ? row_tile * WARPGROUPS + i : tiles - 1;
                    bulk_copy(to + WEIGHTS_AT + i * WEIGHT_BYTES, w + (tile * stages + first + s) * WEIGHT_BYTES,
                              WEIGHT_BYTES, &full[slot]);
                }
                slot = slot + 1 == STAGES ? 0 : slot + 1;
                parity ^= slot == 0;
            }
        }
        return;
    }
    if (CTAS == 1) more_registers<240>();

    const int c = thread % 4;
    float acc[2][PIECES][COUNT] = {}, sums[BUFFERS][2][COUNT];  // [tile]
    uint32_t a[BUFFERS][2][2][4];                               // [tile][16 values]
    float dw[BUFFERS][2][2], mw[BUFFERS][2][2];                 // [tile][r]
    float4 scales[BUFFERS][COUNT / 4];
    int slot = 0, parity = 0;
    const uint8_t* stage = ring;

    const auto prepare = [&](int block) {
        const Part p = load(stage + WEIGHTS_AT + group * WEIGHT_BYTES + block * CHUNK, thread);
        const int k = block % BUFFERS;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            half_fragments(p, t, a[k][t]);
#pragma unroll
            for (int r = 0; r < 2; ++r) dw[k][t][r] = half_of(p.d, t, r), mw[k][t][r] = HAS_M ? half_of(p.m, t, r) : 0.0f;
        }
    };
    // Unit u is piece u % PIECES of block u / PIECES.
    const auto issue = [&](int u) {
        const int block = u / PIECES, piece = u % PIECES, k = block % BUFFERS, buffer = u % BUFFERS;
        const SharedMatrix b = part(shared_matrix(stage), piece * PIECE, block * 32);
#pragma unroll
        for (int i = 0; i < 2 * BUFFERS; ++i) pin(a[i / 2][i % 2][0]), pin(a[i / 2][i % 2][1]);
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            wgmma<false>(sums[buffer][t], a[k][t][0], b);
            wgmma<true>(sums[buffer][t], a[k][t][1], part(b, 0, 16));
        }
        wgmma_commit();
        // before the wait for the products: shared memory is slow while these run
        const float4* at = (const float4*)(stage + TOKENS * 128) + (block * TOKENS + piece * PIECE) / 2 + c;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) scales[buffer][j] = at[4 * j];
    };
    const auto finish = [&](int u) {
        const int k = u / PIECES % BUFFERS, piece = u % PIECES, buffer = u % BUFFERS;
#pragma unroll
        for (int t = 0; t < 2; ++t) wgmma_ready(sums[buffer][t]);
#pragma unroll
        for (int t = 0; t < 2; ++t) add_terms(acc[t][piece], sums[buffer][t], scales[buffer], dw[k][t], mw[k][t]);
    };

    // No product is pending between stages: the compiler would serialize products that outlive an iteration.
    for (int s = 0; s < count; ++s) {
        mbarrier_wait(&full[slot], parity);
        prepare(0);
        if (BUFFERS == 2) {
            issue(0), issue(1);
            prepare(1);
            wgmma_wait<1>(), finish(0), issue(2);
            wgmma_wait<1>(), finish(1), issue(3);
            wgmma_wait<1>(), finish(2);
            wgmma_wait<0>(), finish(3);
        } else {
#pragma unroll
            for (int u = 0; u < 2 * PIECES; ++u) {
                if (u == PIECES) prepare(1);
                issue(u);
                wgmma_wait<0>();
                finish(u);
            }
        }
        mbarrier_arrive(&empty[slot]);  // by every lane: one for its warp is no faster, and racecheck cannot follow it
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
        stage = ring + slot * SLOT;
    }

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
                if (n < N && m < M) y[m * N + n] = acc[t][piece][i];
            }
}
