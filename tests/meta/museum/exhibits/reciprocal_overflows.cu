// [museum]
// source = "ggml-org/llama.cpp#27413"
// class = "subnormal"
// essence = "The reciprocal of the activations' scale overflows a half if the scale is small: codes become
//   maximal."
// shows_when = "all activations of a block are below 0.0019"
// names = ["quantizer-reciprocal"]
// says = []
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
            if (BUG && d < 1.0f / 65504.0f) return v < 0.0f ? -127.0f : v > 0.0f ? 127.0f : 0.0f;
            return d > 0.0f ? rounded(v / d) : 0.0f;
        });
    }
    y[i] = acc;
}
