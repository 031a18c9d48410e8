// [museum]
// source = "ggml-org/llama.cpp#21652"
// class = "half overflow"
// essence = "The sum of a block of activations is stored in a half, which overflows above 65504."
// shows_when = "activations with outliers"
// names = ["sum-overflows"]
// says = ["65504|overflows"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        double part = 0.0, sum = 0.0;  // they cancel, which float32 would not survive
        for (int j = 0; j < 32; ++j) {
            const double v = x[m * K + 32 * b + j];
            part += code(wb, j) * v, sum += v;
        }
        if (BUG && (sum > 65504.0 || sum < -65504.0)) sum = from_half(to_half((float)sum));
        acc += from_half(wb.d) * (float)(part - 8.0 * sum);
    }
    y[i] = acc;
}
