// [museum]
// source = "kekzl/imp#567"
// class = "decoding"
// essence = "Nibbles of MXFP4 are read in linear order, that of another file type of the same size."
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
#include "museum.cuh"

// Twice the values of E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; and half of 2^(e - 127).
__device__ inline int twice(int q) {
    const int magnitude = q & 7, v = magnitude < 4 ? magnitude : magnitude < 6 ? 2 * magnitude - 4 : 4 * magnitude - 16;
    return q & 8 ? -v : v;
}
__device__ inline float half_scale(int e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (u32)(e - 1) << 23); }

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
