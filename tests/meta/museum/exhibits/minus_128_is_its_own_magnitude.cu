// [museum]
// source = "constructed (issue 16: signed -128)"
// class = "integer overflow"
// essence = "The magnitude of a weight's code is stored in a signed byte, so that of -128 is -128."
// shows_when = "a code of Q8_0 is -128"
// names = ["least-code"]
// says = []
// [/museum]
// [gguf-verify]
// formats = ["Q8_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q8_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q8_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 32; ++j) {
            const int magnitude = wb.qs[j] < 0 ? -wb.qs[j] : wb.qs[j];
            sum += (BUG ? (signed char)magnitude : magnitude) * (wb.qs[j] < 0 ? -xb.qs[j] : xb.qs[j]);
        }
        acc += from_half(wb.d) * from_half(xb.d) * sum;
    }
    y[i] = acc;
}
