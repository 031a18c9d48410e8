// [museum]
// source = "kekzl/imp#722"
// class = "decoding"
// essence = "The two nibbles of a byte are read as neighbouring values."
// shows_when = "always"
// names = ["nibbles-in-pairs", "activations-interleaved"]
// says = []
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 16; ++j) {
            sum += (wb.qs[j] & 15) * xb.qs[BUG ? 2 * j : j];
            sum += (wb.qs[j] >> 4) * xb.qs[BUG ? 2 * j + 1 : j + 16];
        }
        acc += from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
