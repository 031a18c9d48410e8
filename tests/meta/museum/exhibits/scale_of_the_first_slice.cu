// [museum]
// source = "mlc-ai/TIRx-kernels#5"
// class = "decoding"
// essence = "Scales are loaded for four blocks at a time, and the first one is used for all four."
// shows_when = "always; a check by cosine and random data may miss it"
// names = ["neighbouring-scale"]
// says = ["scales? of (a|an|the) (other|neighbouring|first|wrong)"]
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
        const float d = from_half(w[n * blocks + (BUG ? b / 4 * 4 : b)].d);
        acc += d * (from_half(xb.d) * dot(wb, xb) - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
