// [museum]
// source = "ggml-org/llama.cpp#2144"
// class = "read outside"
// essence = "A warp reads eight blocks of weights at once, even past the end of the row and of the buffer, and
//   multiplies the excess by zeros."
// shows_when = "K is not a multiple of 256"
// names = []
// says = ["reads? (outside|past)|out of bounds|outside its (weights|activations|inputs)|past the end"]
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
    const int end = BUG ? (blocks + 7) / 8 * 8 : blocks;
    for (int b = 0; b < end; ++b) {
        const Q4_0 wb = w[n * blocks + b];
        Q8_1 xb = {};
        if (b < blocks) xb = x[m * blocks + b];
        acc += term(wb, xb);
    }
    y[i] = acc;
}
