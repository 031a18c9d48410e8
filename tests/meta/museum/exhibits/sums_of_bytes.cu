// [museum]
// source = "ggml-org/llama.cpp#986"
// class = "integer overflow"
// essence = "Sums of two products are stored in a byte."
// shows_when = "always"
// names = []
// says = ["int8|8 bits"]
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
            const int two = (wb.qs[j] & 15) * xb.qs[j] + (wb.qs[j] >> 4) * xb.qs[j + 16];
            sum += BUG ? (signed char)two : two;
        }
        acc += from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
