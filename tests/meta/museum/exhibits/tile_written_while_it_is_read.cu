// [museum]
// source = "csarofeen/pytorch#380"
// class = "race"
// essence = "There is no barrier at the end of the loop: the next tile is written while other warps still read this
//   one."
// shows_when = "more than one warp, more than one tile of K"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// quick = true
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
        if (tx < 8 && n0 + tx < N) ws[tx] = w[(n0 + tx) * blocks + b];
        if (tx < 8 && m0 + tx < M) xs[tx] = x[(m0 + tx) * blocks + b];
        __syncthreads();
        if (m < M && n < N) acc += term(ws[r], xs[t]);
        if (!BUG) __syncthreads();
    }
    if (m < M && n < N) y[m * N + n] = acc;
}
