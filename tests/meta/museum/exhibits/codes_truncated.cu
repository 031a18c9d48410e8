// [museum]
// source = "constructed (issue 16: faults of the quantizer)"
// class = "quantizer"
// essence = "Codes are truncated, not rounded."
// shows_when = "always"
// names = ["quantizer-truncates"]
// says = []
// quick = true
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// takes = "float32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "quantizer.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        acc += quantized_term(w[n * blocks + b], x + m * K + 32 * b, [](float v, float d) {
            return d > 0.0f ? (BUG ? (float)(int)(v / d) : rounded(v / d)) : 0.0f;
        });
    }
    y[i] = acc;
}
