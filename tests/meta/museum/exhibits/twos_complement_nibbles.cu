// [museum]
// source = "1bit-MONSTER/1bit-MONSTER#572"
// class = "decoding"
// essence = "Nibbles are read as two's complement instead of excess 8."
// shows_when = "always"
// names = ["signedness", "offset-missing"]
// says = []
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
        for (int j = 0; j < 32; ++j) {
            const int q = BUG ? (code(wb, j) ^ 8) - 8 : code(wb, j) - 8;
            acc += from_half(wb.d) * q * x[m * K + 32 * b + j];
        }
    }
    y[i] = acc;
}
