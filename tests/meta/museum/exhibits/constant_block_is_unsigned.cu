// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "rare value"
// essence = "The shortcut for blocks of equal activations reads their code without its sign."
// shows_when = "32 activations in a row are equal and negative"
// names = ["first-taken-branch"]
// says = ["-127|equal|negative|code"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

// Whether all codes are equal.
__device__ inline bool constant(const Q8_1& x) {
    for (int i = 1; i < 32; ++i)
        if (x.qs[i] != x.qs[0]) return false;
    return true;
}

// Σ q_w of a block.
__device__ inline int total(const Q4_0& w) {
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += code(w, i);
    return sum;
}

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = dot(wb, xb);
        if (constant(xb)) sum = total(wb) * (BUG ? (u8)xb.qs[0] : xb.qs[0]);
        acc += from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
