// [museum]
// source = "1bit-MONSTER/1bit-MONSTER#677"
// class = "decoding"
// essence = "The scale of Q4_0, a half, is read as a bfloat16."
// shows_when = "always"
// names = []
// says = ["bfloat16"]
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
        const float d = BUG ? __uint_as_float((u32)wb.d << 16) : from_half(wb.d);
        acc += d * (from_half(xb.d) * dot(wb, xb) - 8.0f * from_half(xb.s));
    }
    y[i] = acc;
}
