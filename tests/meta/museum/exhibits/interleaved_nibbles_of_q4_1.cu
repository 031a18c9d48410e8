// [museum]
// source = "paiml/aprender#2069"
// class = "decoding"
// essence = "Only for Q4_1, the two nibbles of a byte are read as neighbouring values."
// shows_when = "always"
// names = ["nibbles-in-pairs", "activations-interleaved"]
// says = []
// [/museum]
// [gguf-verify]
// formats = ["Q4_1"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_1* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_1& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 32; ++j) sum += (BUG ? wb.qs[j / 2] >> j % 2 * 4 & 15 : code(wb, j)) * xb.qs[j];
        acc += from_half(wb.d) * from_half(xb.d) * sum + from_half(wb.m) * from_half(xb.s);
    }
    y[i] = acc;
}
