// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "rare scale"
// essence = "Blocks of activations whose scale is zero are skipped, but their sum may not be zero."
// shows_when = "d of a block of activations rounds to 0, and s does not"
// names = ["first-taken-branch"]
// says = ["d.*0|zero|s\\\\b"]
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
        if (BUG && (xb.d & 0x7FFF) == 0) continue;
        acc += from_half(wb.d) * (from_half(xb.d) * dot(wb, xb) - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
