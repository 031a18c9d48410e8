// Sums of a product of codes in a declared order, for NumPy's arrays: `CodeTerm.bits` of gguf_verify.semantics with the
// processor's fused multiply-add, which NumPy lacks. NumPy computes a sample, too. Plain C++: no kernel includes it.
#pragma once
#include <cstdint>

// The addends of a term besides d_w·d_a·Σ q_w·q_a: none; fma(m_w, z, …) behind it; or z inside, d_w·fma(d_a, Σ, z).
enum class Second { NONE, ADDED, INSIDE };

template <Second SECOND>
static void add_terms(const float* sums,             // (terms, M, N): Σ q_w·q_a
                      const float* d_a,              // (terms, M)
                      const float* d_w,              // (terms, N)
                      const float* z,                // (terms, M), if there is a second addend
                      const float* m_w,              // (terms, N), if it is ADDED
                      float* __restrict__ out,       // (M, N): the sums so far, and then these terms' too
                      int64_t terms, int64_t M, int64_t N) {
    constexpr int64_t WIDTH = 64;
    for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < N; n += WIDTH) {
            const int64_t width = N - n < WIDTH ? N - n : WIDTH;
            float acc[WIDTH];
            for (int64_t j = 0; j < width; ++j) acc[j] = out[m * N + n + j];
            for (int64_t b = 0; b < terms; ++b) {
                const float* sum = sums + (b * M + m) * N + n;
                const float *d = d_w + b * N + n, *least = m_w + b * N + n, scale = d_a[b * M + m];
                if constexpr (SECOND == Second::INSIDE) {
                    const float inside = z[b * M + m];
                    for (int64_t j = 0; j < width; ++j)
                        acc[j] = __builtin_fmaf(d[j], __builtin_fmaf(scale, sum[j], inside), acc[j]);
                } else {
                    for (int64_t j = 0; j < width; ++j) acc[j] = __builtin_fmaf(scale * d[j], sum[j], acc[j]);
                    if constexpr (SECOND == Second::ADDED) {
                        const float factor = z[b * M + m];
                        for (int64_t j = 0; j < width; ++j) acc[j] = __builtin_fmaf(least[j], factor, acc[j]);
                    }
                }
            }
            for (int64_t j = 0; j < width; ++j) out[m * N + n + j] = acc[j];
        }
    }
}

extern "C" void add_terms_of_codes(const float* sums, const float* d_a, const float* d_w, const float* z,
                                   const float* m_w, float* out, int64_t terms, int64_t M, int64_t N, int second) {
    const auto add = second == 0 ? add_terms<Second::NONE> : second == 1 ? add_terms<Second::ADDED> : add_terms<Second::INSIDE>;
    add(sums, d_a, d_w, z, m_w, out, terms, M, N);
}
