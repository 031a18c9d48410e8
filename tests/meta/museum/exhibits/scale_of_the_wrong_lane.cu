// [museum]
// source = "paiml/aprender#1924"
// class = "decoding"
// essence = "The scale of a Q2_K group is taken from another lane's group."
// shows_when = "always"
// names = ["neighbouring-scale"]
// says = ["scales? of (a|an|the) (other|neighbouring|first|wrong)"]
// [/museum]
// [gguf-verify]
// formats = ["Q2_K"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q2_K* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < K / 256; ++b) {
        const Q2_K& wb = w[n * (K / 256) + b];
        for (int v = 0; v < 256; ++v) {
            const int q = wb.qs[v / 128 * 32 + v % 32] >> v % 128 / 32 * 2 & 3, g = v / 16;
            const u8 both = wb.scales[BUG ? g ^ 1 : g];
            acc += (from_half(wb.d) * (both & 15) * q - from_half(wb.dmin) * (both >> 4)) * x[m * K + 256 * b + v];
        }
    }
    y[i] = acc;
}
