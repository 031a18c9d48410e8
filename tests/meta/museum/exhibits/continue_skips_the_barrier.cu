// [museum]
// source = "1bit-MONSTER/1bit-MONSTER#1262"
// class = "barrier"
// essence = "Threads without a row continue with the next tile and skip the barrier at which the others wait."
// shows_when = "N is not a multiple of the tile's 8"
// names = ["partial-tile"]
// says = ["barrier|diverge|race"]
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

    __shared__ Q4_0 ws[8];
    __shared__ Q8_1 xs[8];

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        if (BUG && n >= N) continue;
        if (tx < 8 && n0 + tx < N) ws[tx] = w[(n0 + tx) * blocks + b];
        if (tx >= 56 && m0 + tx - 56 < M) xs[tx - 56] = x[(m0 + tx - 56) * blocks + b];
        __syncthreads();
        if (m < M && n < N) acc += term(ws[r], xs[t]);
        __syncthreads();
    }
    if (m < M && n < N) y[m * N + n] = acc;
}
