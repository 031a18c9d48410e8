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
#include "museum.cuh"

// Blocks of Q8_1 of 32 values: d, s and codes.
__device__ inline float largest(const float* v) {
    float most = 0.0f;
    for (int j = 0; j < 32; ++j) most = v[j] > most ? v[j] : -v[j] > most ? -v[j] : most;
    return most;
}
__device__ inline float sum_of(const float* v) {  // halves of the block are added to each other, again and again
    float s[32];
    for (int j = 0; j < 32; ++j) s[j] = v[j];
    for (int half = 16; half; half /= 2)
        for (int j = 0; j < half; ++j) s[j] += s[j + half];
    return s[0];
}
__device__ inline float rounded(float q) {  // to nearest, halves away from zero
    const float magnitude = q < 0.0f ? -q : q, whole = (float)(int)magnitude;
    const float to = magnitude - whole >= 0.5f ? whole + 1.0f : whole;
    return q < 0.0f ? -to : to;
}
__device__ inline float rounded_or_nan(float q) { return q == q ? rounded(q) : q; }

extern "C" __global__ void gemm(const Q4_0* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const float* v = x + m * K + 32 * b;
        const float d = largest(v) / 127.0f;
        float sum = 0.0f;
        for (int j = 0; j < 32; ++j) {
            const float q = BUG || d > 0.0f ? rounded_or_nan(v[j] / d) : 0.0f;
            sum += code(wb, j) * q;
        }
        acc += from_half(wb.d) * (from_half(to_half(d)) * sum - 8.0f * from_half(to_half(sum_of(v))));
    }
    y[i] = acc;
}
