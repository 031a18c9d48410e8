// Steps of exact products that need float32, for products computed on a GPU: sums in a declared order, and conversions.
// CuPy's own kernels would flush subnormal numbers to zero. The formulas stay in NumPy (`gguf_verify.semantics`); this
// file only has what `semantics/rounding.py` does too, with the same bits.
#include "common.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ int64_t thread_number() { return (int64_t)blockIdx.x * THREADS + threadIdx.x; }

// product + acc with one rounding to float32: float64 rounds to odd first (Boldo and Melquiond, 2008).
__device__ __forceinline__ float add_rounded(double product, float acc) {
    const double a = acc, total = product + a, back = total - product;
    const double error = (product - (total - back)) + (a - back);  // exact (Knuth's TwoSum); NaN if total is not finite
    long long bits = __double_as_longlong(total);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (total > 0) ? 1 : -1;
    return (float)__longlong_as_double(bits);
}

// For each output, products of one stream or of two alternating ones, added to `start` in ascending steps.
extern "C" __global__ void __launch_bounds__(THREADS)
    chain(const double* __restrict__ first,   // (steps, size)
          const double* __restrict__ second,  // (steps, size), used where there are two streams
          const float* __restrict__ start,    // (size)
          float* __restrict__ out,            // (size)
          int streams, int steps, int64_t size) {
    const int64_t i = thread_number();
    if (i >= size) return;
    float acc = start[i];
    for (int64_t at = i, step = 0; step < steps; ++step, at += size) {
        acc = add_rounded(first[at], acc);
        if (streams == 2) acc = add_rounded(second[at], acc);
    }
    out[i] = acc;
}

// Fused multiply-adds in ascending k from +0.
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_adds(const float* __restrict__ a,  // (k, m)
                  const float* __restrict__ w,  // (k, n)
                  float* __restrict__ out,      // (m, n)
                  int k, int m, int n) {
    const int64_t i = thread_number();
    if (i >= (int64_t)m * n) return;
    const int64_t row = i / n, column = i % n;
    float acc = 0;
    for (int64_t j = 0; j < k; ++j) acc = __fmaf_rn(a[j * m + row], w[j * n + column], acc);
    out[i] = acc;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    to_float32(const double* __restrict__ values, double* __restrict__ out, int64_t size) {
    const int64_t i = thread_number();
    if (i < size) out[i] = (float)values[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    widened(const float* __restrict__ values, double* __restrict__ out, int64_t size) {
    const int64_t i = thread_number();
    if (i < size) out[i] = values[i];
}
