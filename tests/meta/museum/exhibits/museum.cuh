// What the museum's kernels have in common: blocks as they lie in a file, halves, and the product of two blocks.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;  // also a half, as its bits
typedef unsigned int u32;
typedef long long i64;

struct Q4_0 { u16 d; u8 qs[16]; };
struct Q4_1 { u16 d, m; u8 qs[16]; };
struct Q5_0 { u16 d; u8 qh[4], qs[16]; };
struct Q8_0 { u16 d; signed char qs[32]; };
struct Q8_1 { u16 d, s; signed char qs[32]; };
struct MXFP4 { u8 e, qs[16]; };
struct Q2_K { u8 scales[16], qs[64]; u16 d, dmin; };
struct Q4_K { u16 d, dmin; u8 scales[12], qs[128]; };
struct Q5_K { u16 d, dmin; u8 scales[12], qh[32], qs[128]; };
struct Q6_K { u8 ql[128], qh[64]; signed char scales[16]; u16 d; };

__device__ inline float from_half(u16 h) {
    const u32 sign = (h & 0x8000u) << 16, magnitude = h & 0x7FFFu;
    if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    // a half's exponent counts from -15, a float's from -127: 2^112 between them, also for subnormal numbers
    return __uint_as_float(sign | magnitude << 13) * 5192296858534827628530496329220096.0f;
}

// To nearest, ties to even.
__device__ inline u16 to_half(float f) {
    const u32 bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0x7FFF;
    if (magnitude >= 0x477FF000u) return (u16)(sign | 0x7C00u);
    if (magnitude < 0x38800000u)  // below 2^-14; 0.5 has an ulp of 2^-24, which is a subnormal half's
        return (u16)(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000u));
    return (u16)(sign | (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13);
}

// Code i of a block.
__device__ inline int code(const Q4_0& w, int i) { return i < 16 ? w.qs[i] & 15 : w.qs[i - 16] >> 4; }
__device__ inline int code(const Q4_1& w, int i) { return i < 16 ? w.qs[i] & 15 : w.qs[i - 16] >> 4; }
__device__ inline int code(const Q5_0& w, int i) {
    return (i < 16 ? w.qs[i] & 15 : w.qs[i - 16] >> 4) | (w.qh[i / 8] >> i % 8 & 1) << 4;
}
__device__ inline int code(const Q8_0& w, int i) { return w.qs[i]; }

// Σ q_w q_a of a block.
template <class W>
__device__ inline int dot(const W& w, const Q8_1& x) {
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += code(w, i) * x.qs[i];
    return sum;
}

// The product of two blocks, by the definition q8_1.
__device__ inline float term(const Q4_0& w, const Q8_1& x) {
    return from_half(w.d) * (from_half(x.d) * dot(w, x) - 8.0f * from_half(x.s));
}
__device__ inline float term(const Q4_1& w, const Q8_1& x) {
    return from_half(w.d) * from_half(x.d) * dot(w, x) + from_half(w.m) * from_half(x.s);
}
__device__ inline float term(const Q5_0& w, const Q8_1& x) {
    return from_half(w.d) * (from_half(x.d) * dot(w, x) - 16.0f * from_half(x.s));
}
__device__ inline float term(const Q8_0& w, const Q8_1& x) { return from_half(w.d) * from_half(x.d) * dot(w, x); }

// Blocks from … to - 1 of a row of weights and a row of activations.
template <class W>
__device__ inline float terms(const W* w, const Q8_1* x, int from, int to) {
    float acc = 0.0f;
    for (int b = from; b < to; ++b) acc += term(w[b], x[b]);
    return acc;
}

// Of the launch ceil(M * N, 128) × 128: this thread's output, token m and row n; threads without one return.
#define ONE_THREAD_AN_OUTPUT                                        \
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;       \
    if (i >= (i64)M * N) return;                                    \
    const i64 m = i / N, n = i % N;                                 \
    const int blocks = K / 32;                                      \
    (void)m, (void)n, (void)blocks

// Of the launch ceil(M, 8) * ceil(N, 8) × 64: this thread block's tile of outputs begins at token m0 and row n0; this
// thread's output is token m0 + t and row n0 + r, which may not exist.
#define A_TILE_OF_OUTPUTS                                           \
    const i64 across = ((i64)N + 7) / 8;                            \
    const i64 m0 = blockIdx.x / across * 8, n0 = blockIdx.x % across * 8; \
    const int tx = threadIdx.x, t = tx / 8, r = tx % 8;             \
    const i64 m = m0 + t, n = n0 + r;                               \
    const int blocks = K / 32;                                      \
    (void)tx, (void)m, (void)n, (void)blocks
