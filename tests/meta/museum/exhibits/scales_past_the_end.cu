// [museum]
// source = "ml-explore/mlx#1577"
// class = "read outside"
// essence = "Scales are loaded for a whole tile, even past the end. Multiplied by zero they do no harm unless they are
//   NaN."
// shows_when = "K is not a multiple of 64"
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
    for (int b = 0; b < (BUG ? blocks + blocks % 2 : blocks); ++b) {
        const float scale = from_half(w[n * blocks + b].d);
        float part = 0.0f;
        if (b < blocks) {
            const Q8_1& xb = x[m * blocks + b];
            part = from_half(xb.d) * dot(w[n * blocks + b], xb) - 8.0f * from_half(xb.s);
        }
        acc += scale * part;
    }
    y[i] = acc;
}
