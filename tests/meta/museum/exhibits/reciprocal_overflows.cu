// [museum]
// source = "ggml-org/llama.cpp#27413"
// class = "subnormal"
// essence = "The reciprocal of the activations' scale overflows a half where the scale is small: codes become
//   the largest ones."
// shows_when = "all activations of a block are below 0.0019"
// names = []
// says = ["subnormal|reciprocal|quantizer"]
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

extern "C" __global__ void gemm(const Q4_0* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const float* v = x + m * K + 32 * b;
        const float d = largest(v) / 127.0f;
        float sum = 0.0f;
        for (int j = 0; j < 32; ++j) {
            float q = d > 0.0f ? rounded(v[j] / d) : 0.0f;
            if (BUG && d < 1.0f / 65504.0f) q = v[j] < 0.0f ? -127.0f : v[j] > 0.0f ? 127.0f : 0.0f;
            sum += code(wb, j) * q;
        }
        acc += from_half(wb.d) * (from_half(to_half(d)) * sum - 8.0f * from_half(to_half(sum_of(v))));
    }
    y[i] = acc;
}
