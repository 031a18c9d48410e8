// 06 tensor cores: like 05, with mma.sync instead of __dp4a.
//
// What is new. One warp instruction multiplies 16 rows × 8 tokens × 32 codes (on sm_75 a quarter of that): 4096
// products, where a warp's __dp4a does 128. A block of 16 warps computes 128 × 128 outputs, each warp 32 rows × 32
// tokens. For a slice of 32 values a warp issues 8 mma, 8 loads of 8 bytes for their operands and 8 for scales, so
// products are no longer the bottleneck. The terms of the slice are, which tensor cores cannot add in the declared
// order: 32 outputs per lane, 3 or 4 float operations each (with sums that start at INTEGER_BASE), so some 130 issue
// slots for 8 mma. An SM issues 4 per cycle: with 132 SMs at 1.755 GHz the ceiling is about 450 TFLOP/s (2·M·N·K per
// product). A tile reads (128·18 + 128·36) / 16384 = 0.4 bytes of global memory for 32 products of Q4_0.
//
// The next slice's tile is loaded into registers while this one is multiplied. Shared memory has room for two tiles, so
// one barrier per slice suffices. Larger tiles for each warp (64 × 32) would need fewer loads per product, but do not
// fit into 128 registers.
//
// If 16 values share a scale, a product of the tensor cores is 16 codes long, and there are twice as many terms.
//
// Shared memory holds the words c and c + 4 of a row (codes 4c… and 16+4c…) next to each other: lane c of a row needs
// exactly these, in one load of 8 bytes, and 16 lanes use 32 banks.
#include "formats/format.cuh"
#include "gemm/mma.cuh"

constexpr int TERMS = Scales<FORMAT>::GROUPS, Z_GROUPS = FORMAT::MINIMUM == Minimum::MEETS_CODES ? TERMS : 1;

// The values that the terms need of a token and slice, from its halves d and s: d, and z of each group with its own.
__device__ __forceinline__ void token_scales(float2 (&of)[Z_GROUPS], uint32_t ds, uint32_t low, uint32_t high) {
    int codes[2] = {};
    if (FORMAT::MINIMUM == Minimum::MEETS_CODES) {  // over the four lanes that have a token's codes
        codes[0] = __dp4a((int)low, 0x01010101, 0), codes[1] = __dp4a((int)high, 0x01010101, 0);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int apart = 1; apart <= 2; apart *= 2) codes[h] += __shfl_xor_sync(0xFFFFFFFF, codes[h], apart);
    }
    const float d = half_to_float((uint16_t)ds), s = half_to_float((uint16_t)(ds >> 16));
#pragma unroll
    for (int h = 0; h < Z_GROUPS; ++h)
        of[h] = {d, z_of<FORMAT>(d, s, (float)(Z_GROUPS == 2 ? codes[h] : codes[0] + codes[1]))};
}

extern "C" __global__ void __launch_bounds__(512, 1) gemm(const FORMAT* __restrict__ w,  // (N, K/VALUES)
                                                          const Q8_1* __restrict__ x,    // (M, K/32)
                                                          float* __restrict__ y,         // (M, N)
                                                          int64_t M, int64_t N, int64_t K) {
    constexpr int SLICES = FORMAT::VALUES / QK;
    constexpr int ROWS = 128, TOKENS = 128, OF_ROWS = 2, OF_TOKENS = 4;  // a warp: 2 × 16 rows, 4 × 8 tokens
    __shared__ uint2 wq[2][ROWS][4], xq[2][TOKENS][4];  // words c and c + 4
    __shared__ float4 ds[2][Z_GROUPS][TOKENS / 2];      // of two tokens: d, z, d, z
    __shared__ Scales<FORMAT> scales[2][ROWS];

    const int tid = threadIdx.x, lane = tid % 32, r = lane / 4, c = lane % 4;
    const int warp_row = tid / 128 * 32, warp_token = tid / 32 % 4 * 32;
    const int slices = (int)(K / QK);
    const uint32_t tiles_m = (uint32_t)((M + TOKENS - 1) / TOKENS);
    const int64_t m0 = (int64_t)(blockIdx.x % tiles_m) * TOKENS, n0 = (int64_t)(blockIdx.x / tiles_m) * ROWS;
    // The loads of this thread: a quarter of a row of W and of X; one thread in four also loads the scales of either.
    const int load_row = tid / 4, quarter = tid % 4;
    const FORMAT* w_from = w + (n0 + load_row < N ? n0 + load_row : N - 1) * (slices / SLICES);
    const Q8_1* x_from = x + (m0 + load_row < M ? m0 + load_row : M - 1) * slices;
    uint2 w_next, x_next;
    uint32_t ds_next;
    Scales<FORMAT> scales_next;

    float acc[OF_ROWS][OF_TOKENS][4] = {};
#pragma unroll 1
    for (int k = -1; k < slices; ++k) {
        if (k + 1 < slices) {
            const int s = (k + 1) % SLICES;
            int low, high;
            w_from->codes4(s, quarter, low, high);
            w_next.x = low, w_next.y = high;
            x_next.x = load_word_4(x_from->qs, quarter);
            x_next.y = load_word_4(x_from->qs, quarter + 4);
            if (quarter == 1) scales_next.read(*w_from, s);
            ds_next = load_word_4(&x_from->d, 0);
            if (s == SLICES - 1) ++w_from;
            ++x_from;
        }
        if (k >= 0) {
            const int now = k & 1;
            uint32_t tokens[OF_TOKENS][2];
#pragma unroll
            for (int t = 0; t < OF_TOKENS; ++t) {
                const uint2 words = xq[now][warp_token + 8 * t + r][c];
                tokens[t][0] = words.x, tokens[t][1] = words.y;
            }
#pragma unroll
            for (int i = 0; i < OF_ROWS; ++i) {
                if (Z_GROUPS == 2) __syncwarp();  // the z of all tokens do not fit in registers: they are reread
                const int row = warp_row + 16 * i + r;
                const uint2 upper = wq[now][row][c], lower = wq[now][row + 8][c];
                const uint32_t rows[4] = {upper.x, lower.x, upper.y, lower.y};
                const Scales<FORMAT> of_rows[2] = {scales[now][row], scales[now][row + 8]};
#pragma unroll
                for (int t = 0; t < OF_TOKENS; ++t) {
                    float(&sums)[4] = acc[i][t];
#pragma unroll
                    for (int h = 0; h < TERMS; ++h) {
                        int dots[4];
                        if (TERMS == 1) mma(dots, rows, tokens[t], INTEGER_BASE);
                        else mma_half(dots, rows[2 * h], rows[2 * h + 1], tokens[t][h], INTEGER_BASE);
                        const float4 two = ds[now][h % Z_GROUPS][(warp_token + 8 * t) / 2 + c];
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const float d_a = e % 2 ? two.z : two.x, z = e % 2 ? two.w : two.y;
                            const Scales<FORMAT>& of_row = of_rows[e / 2];
                            sums[e] = add_term<FORMAT>(sums[e], of_row.scale(h), of_row.minimum(h), d_a, z,
                                                       above_base(dots[e]));
                        }
                    }
                }
            }
        }
        if (k + 1 < slices) {
            const int next = (k + 1) & 1;
            wq[next][load_row][quarter] = w_next;
            xq[next][load_row][quarter] = x_next;
            if (quarter == 1) scales[next][load_row] = scales_next;
            float2 of_token[Z_GROUPS];
            token_scales(of_token, ds_next, x_next.x, x_next.y);
            if (quarter == 0) {
#pragma unroll
                for (int h = 0; h < Z_GROUPS; ++h) ((float2*)ds[next][h])[load_row] = of_token[h];
            }
        }
        __syncthreads();  // the next slice has arrived, and this one is no longer read
    }
    const int row = warp_row + r, rows_left = N - n0 < ROWS ? (int)(N - n0) : ROWS;
#pragma unroll
    for (int t = 0; t < OF_TOKENS; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int64_t m = m0 + warp_token + 8 * t + 2 * c + e;
            if (m >= M) continue;
            float* out = y + m * N + n0 + row;
#pragma unroll
            for (int i = 0; i < OF_ROWS; ++i) {
                if (row + 16 * i < rows_left) out[16 * i] = acc[i][t][e];
                if (row + 16 * i + 8 < rows_left) out[16 * i + 8] = acc[i][t][2 + e];
            }
        }
    }
}
