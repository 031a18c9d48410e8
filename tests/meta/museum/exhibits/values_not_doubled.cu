// [museum]
// source = "tinygrad/tinygrad#14850"
// class = "decoding"
// essence = "ggml stores doubled E2M1 values and half the scale; the kernel halves only the scale."
// shows_when = "always"
// names = []
// says = ["factor|twice|halved|0\\.5"]
// [/museum]
// [gguf-verify]
// formats = ["MXFP4"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "mxfp4.cuh"

extern "C" __global__ void gemm(const MXFP4* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const MXFP4& wb = w[n * blocks + b];
        for (int j = 0; j < 32; ++j) {
            const int q = wb.qs[j % 16] >> j / 16 * 4 & 15;
            acc += half_scale(wb.e) * (BUG ? 0.5f : 1.0f) * twice(q) * x[m * K + 32 * b + j];
        }
    }
    y[i] = acc;
}
