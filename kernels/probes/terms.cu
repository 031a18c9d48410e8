// The instructions that the definition q8_1 requires of Hopper's tensor cores and lanes for many tokens, and nothing
// else.
//
// For a slice of 32 values, 64 rows by TOKENS tokens need two `wgmma` into sums that begin at zero, since a slice has
// its own scales, and then two or three float operations per output (`add_term`), for which each sum must be in a
// register. The operands are loaded once, or all except the tokens' scales, which differ between slices: a lane has
// outputs of a quarter of the tokens. The loop has no unpacking and no barriers. A kernel that multiplies halves in
// this way has these instructions, the loads, and more. `python -m tools.measure bench kernels` times them.
//
//     TOKENS         32, 64 or 128, the columns of a product
//     TILES          1 or 2 of 64 rows, of a warpgroup
//     SCALES         HELD or LOADED from shared memory for each slice
//     WARPGROUPS     of a block
//     TERMS          a Minimum: OFFSET (Q4_0, Q5_0), NONE (Q8_0) or MEETS_S (Q4_1, Q5_1)
//     ARRANGEMENT    PRODUCTS or TERMS_ALONE
//                    IN_TURN       a warpgroup adds terms after its products; meanwhile others multiply
//                    OVERLAPPED    it also multiplies the next slice while it adds the terms of one (as 07_wgmma.cu)
//                    APART         some warpgroups multiply, and others add terms of sums that they always had: no kernel
//                                  does that, as sums do not change hands for nothing
#include "async.cuh"
#include "gemm/f16/wgmma.cuh"

enum class Arrangement { PRODUCTS, TERMS_ALONE, IN_TURN, OVERLAPPED, APART };
enum class OfTokens { HELD, LOADED };
constexpr Arrangement HERE = Arrangement::ARRANGEMENT;
constexpr bool LOADED = OfTokens::SCALES == OfTokens::LOADED;
constexpr int COUNT = TOKENS / 2, UNITS = 512 / TOKENS;  // outputs of a lane; slices of a turn of the loop
constexpr int MULTIPLIERS = HERE == Arrangement::APART ? WARPGROUPS / 2 : WARPGROUPS;

struct Format {
    static constexpr Minimum MINIMUM = Minimum::TERMS;
    static constexpr float ZERO = 8.0f;
};

// Like wgmma<false>, since `add` is never true. But the compiler does not know that; it removes products whose sums are
// overwritten.
#ifdef __CUDACC__
#define OUT_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define OUT_16(I) OUT_4(I), OUT_4(I + 4), OUT_4(I + 8), OUT_4(I + 12)
__device__ __forceinline__ void replace(float (&d)[32], const uint32_t (&a)[4], SharedMatrix b, bool add) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, add, 1, 1, 0;}"
        : OUT_16(0), OUT_16(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)add));
}
__device__ __forceinline__ void replace(float (&d)[64], const uint32_t (&a)[4], SharedMatrix b, bool add) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, %68, add, 1, 1, 0;}"
        : OUT_16(0), OUT_16(16), OUT_16(32), OUT_16(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)add));
}
#endif
template <int SUMS>  // for other sizes, and on the CPU
__device__ __forceinline__ void replace(float (&d)[SUMS], const uint32_t (&a)[4], SharedMatrix b, bool) {
    wgmma<false>(d, a, b);
}

typedef float Outputs[TILES][COUNT];

struct Lane {
    uint32_t a[TILES][2][4];  // fragments of its rows
    SharedMatrix b;
    float dw[TILES][2], mw[TILES][2], d[COUNT / 4][2], z[LOADED ? COUNT / 4 : 2][2];  // held, z is of the first 16 tokens

    // Two slices alternate.
    __device__ __forceinline__ void multiply(Outputs& sums, int slice) const {
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            wgmma<false>(sums[t], a[t][0], part(b, 0, slice % 2 * 32));
            wgmma<true>(sums[t], a[t][1], part(b, 0, slice % 2 * 32 + 16));
        }
        wgmma_commit();
    }
    __device__ __forceinline__ void multiply_only(Outputs& sums, int slice, bool never) const {
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            replace(sums[t], a[t][0], part(b, 0, slice % 2 * 32), never);
            wgmma<true>(sums[t], a[t][1], part(b, 0, slice % 2 * 32 + 16));
        }
        wgmma_commit();
    }

    // Of both slices, the same.
    __device__ __forceinline__ void load(const float* tokens, int slice) {
        tokens += slice % 2 * (2 * TOKENS) + threadIdx.x % 4 * (Format::MINIMUM == Minimum::NONE ? 2 : 4);
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            if (Format::MINIMUM == Minimum::NONE) {
                const float2 two = *(const float2*)(tokens + 8 * j);
                d[j][0] = two.x, d[j][1] = two.y;
            } else {
                const float4 two = *(const float4*)(tokens + 16 * j);
                d[j][0] = two.x, z[j][0] = two.y, d[j][1] = two.z, z[j][1] = two.w;
            }
        }
    }

    // Then the rows get different scales, since otherwise the compiler would multiply scales once for all slices. One
    // integer addition per row stands for their loads.
    __device__ __forceinline__ void add_terms(Outputs& acc, const Outputs& sums) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int j = i / 4, e = i % 2, r = i / 2 % 2;
                acc[t][i] = add_term<Format>(acc[t][i], dw[t][r], mw[t][r], d[j][e], z[LOADED ? j : j % 2][e], sums[t][i]);
            }
            if (Format::MINIMUM != Minimum::OFFSET)
#pragma unroll
                for (int r = 0; r < 2; ++r) dw[t][r] = __uint_as_float(__float_as_uint(dw[t][r]) + 1);
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPGROUPS * 128, 1)
    terms(const uint32_t* __restrict__ a,    // (ROWS, 32) halves; ROWS = 64·TILES·WARPGROUPS
          const uint32_t* __restrict__ b,    // (TOKENS, 64) halves
          const float* __restrict__ rows,    // (ROWS){d, m}
          const float* __restrict__ tokens,  // (TOKENS){d, z}
          float* __restrict__ y,             // (ROWS, TOKENS)
          int64_t turns) {
    DYNAMIC_SHARED(shared);
    float* scales = (float*)(shared + TOKENS * 128);  // [2 slices][TOKENS]{d, z}, or d without z
    for (int i = threadIdx.x; i < 2 * TOKENS; i += WARPGROUPS * 128) {
        const int token = i % TOKENS;
        float* to = scales + i / TOKENS * (2 * TOKENS) + token * (Format::MINIMUM == Minimum::NONE ? 1 : 2);
        to[0] = tokens[2 * token];
        if (Format::MINIMUM != Minimum::NONE) to[1] = tokens[2 * token + 1];
    }
    for (int i = threadIdx.x; i < TOKENS * 32; i += WARPGROUPS * 128)
        ((uint32_t*)shared)[i ^ (i / 32 % 8) * 4] = b[i];
    before_bulk_copies();  // and before products
    __syncthreads();

    const int group = threadIdx.x / 128, c = threadIdx.x % 4;
    const int first_row = group * (64 * TILES) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    Lane lane;
    lane.b = shared_matrix(shared);
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        const int row = first_row + 64 * t;
#pragma unroll
        for (int i = 0; i < 8; ++i) lane.a[t][i / 4][i % 4] = a[(row + i % 2 * 8) * 16 + i / 2 * 4 + c];
#pragma unroll
        for (int i = 0; i < 2; ++i) pin(lane.a[t][i]);
#pragma unroll
        for (int r = 0; r < 2; ++r) lane.dw[t][r] = rows[2 * (row + 8 * r)], lane.mw[t][r] = rows[2 * (row + 8 * r) + 1];
    }
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
        const int token = i / 2 * 8 + 2 * c + i % 2;
        lane.d[i / 2][i % 2] = tokens[2 * token];
        if (i < 4) lane.z[i / 2][i % 2] = tokens[2 * token + 1];
    }

    Outputs acc = {}, sums[2] = {};
    // No product is pending between iterations: the compiler would serialize products that outlive one.
    if (HERE == Arrangement::PRODUCTS || (HERE == Arrangement::APART && group < MULTIPLIERS)) {
        for (int64_t turn = 0; turn < turns; ++turn) {
#pragma unroll
            for (int u = 0; u < UNITS; ++u) lane.multiply_only(sums[u % 2], u, turns < 0);
            wgmma_wait<0>();
#pragma unroll
            for (int t = 0; t < TILES; ++t) wgmma_ready(sums[0][t]), wgmma_ready(sums[1][t]);
        }
#pragma unroll
        for (int i = 0; i < TILES * COUNT; ++i)
            acc[i / COUNT][i % COUNT] = __fadd_rn(sums[0][i / COUNT][i % COUNT], sums[1][i / COUNT][i % COUNT]);
    } else if (HERE == Arrangement::TERMS_ALONE || HERE == Arrangement::APART) {
        // Outputs and the stand-ins for sums are added to each other in turn, so that no term is the same in every
        // slice.
#pragma unroll
        for (int i = 0; i < TILES * COUNT; ++i) {
            const int t = i / COUNT, k = i % COUNT;
            sums[0][t][k] = __fmul_rn(lane.dw[t][k / 2 % 2], lane.d[k / 4][k % 2]);
        }
        if (HERE == Arrangement::APART) turns = turns * MULTIPLIERS / (WARPGROUPS - MULTIPLIERS);
        for (int64_t turn = 0; turn < turns; ++turn) {
#pragma unroll
            for (int u = 0; u < UNITS; u += 2) {
                lane.add_terms(acc, sums[0]);
                lane.add_terms(sums[0], acc);
            }
        }
    } else {
        for (int64_t turn = 0; turn < turns; ++turn) {
            if (HERE == Arrangement::OVERLAPPED) lane.multiply(sums[0], 0);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int now = HERE == Arrangement::OVERLAPPED ? u % 2 : 0;
                if (HERE == Arrangement::IN_TURN) lane.multiply(sums[0], u);
                if (HERE == Arrangement::OVERLAPPED && u + 1 < UNITS) lane.multiply(sums[(u + 1) % 2], u + 1);
                if (LOADED) lane.load(scales, u);
                if (HERE == Arrangement::OVERLAPPED && u + 1 < UNITS) wgmma_wait<1>();
                else wgmma_wait<0>();
#pragma unroll
                for (int t = 0; t < TILES; ++t) wgmma_ready(sums[now][t]);
                lane.add_terms(acc, sums[now]);
            }
        }
    }
    if (blockIdx.x == 0)
#pragma unroll
        for (int i = 0; i < TILES * COUNT; ++i) {
            const int t = i / COUNT, k = i % COUNT;
            y[(first_row + 64 * t + k / 2 % 2 * 8) * TOKENS + k / 4 * 8 + 2 * c + k % 2] = acc[t][k];
        }
}
