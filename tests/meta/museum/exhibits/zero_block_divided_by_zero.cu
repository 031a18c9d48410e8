// [museum]
// source = "huggingface/kernels-community#680"
// class = "block of zeros"
// essence = "The scale of a block of zeros is 0, and 0 / 0 is NaN."
// shows_when = "a block of activations is all zeros (padding, masked tokens, ReLU)"
// names = []
// says = ["0/0|zero[- ]block|block of zeros|token of zeros|zero[- ]token"]
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
            return BUG || d > 0.0f ? rounded(v / d) : 0.0f;
        });
    }
    y[i] = acc;
}
