// [museum]
// source = "modular/modular#7069"
// class = "read outside"
// essence = "A tile of 16 tokens is copied without a bounds check, although there is only one token."
// shows_when = "M < 16, as always when decoding"
// names = []
// says = ["reads? (outside|past)|out of bounds|outside its (weights|activations|inputs)|past the end"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "ceil(M, 16) * ceil(N, 64)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block for 64 rows of 16 tokens
    const i64 across = ((i64)N + 63) / 64;
    const i64 m0 = blockIdx.x / across * 16, n = blockIdx.x % across * 64 + threadIdx.x;
    const int blocks = K / 32;
    __shared__ u32 staged[16][9];
    float acc[16] = {};
    for (int b = 0; b < blocks; ++b) {
        for (int j = threadIdx.x; j < 144; j += 64)
            if (BUG || m0 + j / 9 < M) staged[j / 9][j % 9] = ((const u32*)&x[(m0 + j / 9) * blocks + b])[j % 9];
        __syncthreads();
        for (int t = 0; t < 16 && n < N; ++t)
            if (m0 + t < M) acc[t] += term(w[n * blocks + b], *(const Q8_1*)staged[t]);
        __syncthreads();
    }
    for (int t = 0; t < 16 && n < N; ++t)
        if (m0 + t < M) y[(m0 + t) * N + n] = acc[t];
}
