// [museum]
// source = "ggml-org/llama.cpp#28151"
// class = "read outside"
// essence = "The tile of activations is always loaded whole, even if fewer tokens remain; the excess outputs are
//   discarded."
// shows_when = "M is not a multiple of the tile's 8"
// names = []
// says = ["reads? (outside|past)|out of bounds|outside its (weights|activations|inputs)|past the end"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "ceil(M, 8) * ceil(N, 8)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    A_TILE_OF_OUTPUTS;

    __shared__ u32 staged[8][9];
    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        for (int j = tx; j < 72; j += 64)
            if (BUG || m0 + j / 9 < M) staged[j / 9][j % 9] = ((const u32*)&x[(m0 + j / 9) * blocks + b])[j % 9];
        __syncthreads();
        if (m < M && n < N) acc += term(w[n * blocks + b], *(const Q8_1*)staged[t]);
        __syncthreads();
    }
    if (m < M && n < N) y[m * N + n] = acc;
}
