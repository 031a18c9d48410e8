// [museum]
// source = "kekzl/imp#567"
// class = "decoding"
// essence = "MXFP4 nibbles are read in linear order, which belongs to another file type of the same size."
// shows_when = "always"
// names = ["nibbles-in-pairs", "activations-interleaved"]
// says = []
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
            const int q = BUG ? wb.qs[j / 2] >> j % 2 * 4 & 15 : wb.qs[j % 16] >> j / 16 * 4 & 15;
            acc += half_scale(wb.e) * twice(q) * x[m * K + 32 * b + j];
        }
    }
    y[i] = acc;
}
