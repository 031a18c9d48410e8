// [museum]
// source = "ggml-org/llama.cpp#29025"
// class = "read outside"
// essence = "A thread block multiplies four rows, including rows past the last one, which it does not
//   store."
// shows_when = "N is not a multiple of 4"
// names = []
// says = ["reads? (outside|past)|out of bounds|outside its (weights|activations|inputs)|past the end"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * ceil(N, 4), 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 across = ((i64)N + 3) / 4, i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 m = i / across, n0 = i % across * 4;
    const int blocks = K / 32;
    if (m >= M) return;
    float acc[4] = {};
    for (int b = 0; b < blocks; ++b)
        for (int r = 0; r < 4; ++r)
            if (BUG || n0 + r < N) acc[r] += term(w[(n0 + r) * blocks + b], x[m * blocks + b]);
    for (int r = 0; r < 4; ++r)
        if (n0 + r < N) y[m * N + n0 + r] = acc[r];
}
