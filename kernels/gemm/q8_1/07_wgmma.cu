// 07 pipelined tensor cores, for Hopper (sm_90a): as 06, but nobody waits for operands, and the tensor cores hand over
// float32.
//
// A product of a block of 32 costs a lane two or three float operations an output, whatever multiplies the codes: at
// 128 lanes that bounds a multiprocessor, not its tensor cores. So everything else must go from the instruction stream:
//
//   - `wgmma` takes its second operand from shared memory, where the copy engine has put it; one instruction multiplies
//     64 rows by half of the tokens. 06 spends an mma, and loads of fragments, on 16 × 8 outputs.
//   - Halves instead of bytes: codes are integers, sums of 32 products stay below 2^24, and float32 sums of integers are
//     exact in any order. The sum arrives as the float that accumulate() wants; 06 converts each.
//   - Weights come packed and activations tiled (packed.cuh): a lane finds its fragment with one load of 16 bytes, and a
//     4-bit code becomes a half by one mask.
//   - A producer warp keeps a ring of stages of two blocks filled by bulk copies; consumers meet it at barriers in shared
//     memory only. It has given up its registers for theirs.
//   - The terms of half of the tokens are added while the products of the other half are under way.
//
// Bytes a multiprocessor and block, of 256 rows and 64 tokens: 4.6 KB of Q4_0 and 4.6 KB of activations for 1.05 MFLOP.
// The order is 01's, and so are the bits.
#include "packed.cuh"
#include "hopper.cuh"

constexpr int HALF = TOKENS / 2, COUNT = HALF / 2, CONSUMERS = WARPGROUPS * 128;  // tokens, outputs of a lane, threads
constexpr int TOKEN_BYTES = packed::chunk_bytes(TOKENS), WEIGHT_BYTES = 2 * packed::CHUNK;  // of a stage
constexpr int WEIGHTS_AT = (TOKEN_BYTES + 127) / 128 * 128, SLOT = (WEIGHTS_AT + WARPGROUPS * WEIGHT_BYTES + 1023) / 1024 * 1024;
#ifndef PART_STAGES
#define PART_STAGES 0
#endif
static_assert(STAGES * SLOT <= 200 * 1024 && STAGES > 1, "the ring fits in shared memory");

// Terms of one block for half of the tokens: acc += d_w·(d_a·Σ + z), or as the format's minimum asks.
__device__ __forceinline__ void add_terms(float (&acc)[2][2][COUNT], int half, const float (&sums)[2][COUNT],
                                          const float4 (&scales)[COUNT / 4], const float (&dw)[2][2],
                                          const float (&mw)[2][2]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        const float4 of_two = scales[j];  // d, z, d, z of two tokens
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float da = i % 2 ? of_two.z : of_two.x, z = i % 2 ? of_two.w : of_two.y, sum = sums[t][4 * j + i];
                float& out = acc[t][half][4 * j + i];
                if (FORMAT::MINIMUM == Minimum::OFFSET) {
                    out = __fmaf_rn(dw[t][i / 2], __fmaf_rn(da, sum, z), out);
                } else {
                    out = __fmaf_rn(__fmul_rn(dw[t][i / 2], da), sum, out);
                    if (packed::HAS_M) out = __fmaf_rn(mw[t][i / 2], z, out);
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    gemm(const uint8_t* __restrict__ w,  // packed weights
         const uint8_t* __restrict__ x,  // tiled activations
         float* __restrict__ y,          // (M, N); of 09, (parts, M, N)
         int64_t M, int64_t N, int64_t stages) {
    using namespace packed;
    constexpr int64_t PART = PART_STAGES;  // 0: all of K is one part
    const int64_t first = PART * blockIdx.y, last = PART && first + PART < stages ? first + PART : stages;
    y += M * N * blockIdx.y;
    DYNAMIC_SHARED(ring);
    __shared__ MBarrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS / 32);
    mbarrier_init_done();

    // Blocks that run at a time share rows and tokens: eight tiles of rows by all tokens, then the next eight.
    const int64_t tiles = (N + ROWS - 1) / ROWS, row_tiles = (tiles + WARPGROUPS - 1) / WARPGROUPS;
    const int64_t token_tiles = (M + TOKENS - 1) / TOKENS;
    const int64_t band = blockIdx.x / (8 * token_tiles), in_band = blockIdx.x % (8 * token_tiles);
    const int64_t wide = row_tiles - band * 8 < 8 ? row_tiles - band * 8 : 8;
    const int64_t row_tile = band * 8 + in_band % wide, token_tile = in_band / wide;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;

    if (group == WARPGROUPS) {
        fewer_registers<24>();
        if (thread == 0) {
            const uint8_t* tokens = x + token_tile * stages * TOKEN_BYTES;
            for (int64_t s = first; s < last; ++s) {
                const int slot = (int)((s - first) % STAGES);
                uint8_t* to = ring + slot * SLOT;
                mbarrier_wait(&empty[slot], (int)((s - first) / STAGES & 1 ^ 1));
                mbarrier_expect(&full[slot], TOKEN_BYTES + WARPGROUPS * WEIGHT_BYTES);
                bulk_copy(to, tokens + s * TOKEN_BYTES, TOKEN_BYTES, &full[slot]);
                for (int i = 0; i < WARPGROUPS; ++i) {  // the last tile stands in for one past it
                    const int64_t tile = row_tile * WARPGROUPS + i < tiles ? row_tile * WARPGROUPS + i : tiles - 1;
                    bulk_copy(to + WEIGHTS_AT + i * WEIGHT_BYTES, w + (tile * stages + s) * WEIGHT_BYTES, WEIGHT_BYTES,
                              &full[slot]);
                }
            }
        }
        return;
    }
    more_registers<240>();
    const int g = thread % 32 / 4, c = thread % 4;

    float acc[2][2][COUNT] = {}, sums[2][2][COUNT];  // [tile][half], [half][tile]
    uint32_t a[2][2][2][4];                          // [block][tile][16 values]
    float dw[2][2][2], mw[2][2][2];                  // [block][tile][r]
    float4 scales[2][COUNT / 4];                     // [half]
    int slot = 0, parity = 0;
    const uint8_t* stage = ring;

    const auto prepare = [&](int block) {
        const Part p = load(stage + WEIGHTS_AT + group * WEIGHT_BYTES + block * CHUNK, thread);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            half_fragments(p, t, a[block][t]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                dw[block][t][r] = half_of(p.d, t, r);
                mw[block][t][r] = HAS_M ? half_of(p.m, t, r) : 0.0f;
            }
        }
    };
    const auto issue = [&](int half, int block) {
        const SharedMatrix b = shared_matrix(stage);
        pin(a[block]);
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            wgmma<false>(sums[half][t], a[block][t][0], part(b, half * HALF, block * 32));
            wgmma<true>(sums[half][t], a[block][t][1], part(b, half * HALF, block * 32 + 16));
        }
        wgmma_commit();
    };
    // Before the wait for the products: shared memory is slow while these run.
    const auto look_up = [&](int half, int block) {
        const float4* at = (const float4*)(stage + TOKENS * 128) + (block * TOKENS + half * HALF) / 2 + c;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) scales[half][j] = at[4 * j];
    };
    const auto finish = [&](int half, int block) {
        wgmma_ready(sums[half][0]), wgmma_ready(sums[half][1]);
        add_terms(acc, half, sums[half], scales[half], dw[block], mw[block]);
    };

    // Nothing is under way between stages: of products that outlive an iteration the compiler would make a queue of one.
    for (int64_t s = first; s < last; ++s) {
        mbarrier_wait(&full[slot], parity);
        prepare(0);
        issue(0, 0), look_up(0, 0);
        issue(1, 0), look_up(1, 0);
        prepare(1);
        wgmma_wait<1>();
        finish(0, 0);
        issue(0, 1), look_up(0, 1);
        wgmma_wait<1>();
        finish(1, 0);
        issue(1, 1), look_up(1, 1);
        wgmma_wait<1>();
        finish(0, 1);
        wgmma_wait<0>();
        finish(1, 1);
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(&empty[slot]);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
        stage = ring + slot * SLOT;
    }

    const int64_t first_row = (row_tile * WARPGROUPS + group) * ROWS + thread / 32 * 16 + g;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int64_t n = first_row + 64 * t + 8 * (i / 2 % 2);
                const int64_t m = token_tile * TOKENS + half * HALF + i / 4 * 8 + 2 * c + i % 2;
                if (n < N && m < M) y[m * N + n] = acc[t][half][i];
            }
}
