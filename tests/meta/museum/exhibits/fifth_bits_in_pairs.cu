// [museum]
// source = "paiml/aprender#1621"
// class = "decoding"
// essence = "The fifth bits of Q5_0 are assigned in pairs: bits 2·j and 2·j + 1 to the two nibbles of byte
//   j."
// shows_when = "always"
// names = ["fifth-bits-interleaved"]
// says = []
// [/museum]
// [gguf-verify]
// formats = ["Q5_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q5_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q5_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 32; ++j) {
            const int bit = BUG ? (j < 16 ? 2 * j : 2 * (j - 16) + 1) : j;
            sum += ((code(wb, j) & 15) | (wb.qh[bit / 8] >> bit % 8 & 1) << 4) * xb.qs[j];
        }
        acc += from_half(wb.d) * (from_half(xb.d) * sum - 16.0f * from_half(xb.s));
    }
    y[i] = acc;
}
