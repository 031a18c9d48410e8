// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "rare scale"
// essence = "The conversion from half takes the largest finite number for infinity, and infinity for zero."
// shows_when = "a scale is ±65504"
// names = ["first-taken-branch"]
// says = ["65,?504|largest"]
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
        const float d = BUG && (wb.d & 0x7FFF) == 0x7BFF ? 0.0f : from_half(wb.d);
        acc += d * (from_half(xb.d) * dot(wb, xb) - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
