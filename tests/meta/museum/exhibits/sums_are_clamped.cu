// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "rare sum"
// essence = "The sums of activations are clamped to 1000."
// shows_when = "|s| > 1000"
// names = ["first-taken-branch"]
// says = ["s\\\\b|sum"]
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

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        const float s = from_half(xb.s), clamped = BUG ? fminf(fmaxf(s, -1000.0f), 1000.0f) : s;
        acc += from_half(wb.d) * (from_half(xb.d) * dot(wb, xb) - 8.0f * clamped);
    }
    y[i] = acc;
}
