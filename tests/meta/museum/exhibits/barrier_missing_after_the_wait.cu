// [museum]
// source = "ashalliants/ninfer-3090#49"
// class = "asynchronous copy"
// essence = "A thread waits for its own copies and then reads those of other threads without a
//   barrier."
// shows_when = "more than one thread copies a tile"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
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

#include "async_copy.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ASYNC_COPIES;
    A_TILE_OF_OUTPUTS;

    __shared__ u32 staged[8][9];  // a block of activations for each of eight tokens
    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        for (int j = tx; j < 72; j += 64)
            if (m0 + j / 9 < M) async_copy4(&staged[j / 9][j % 9], (const u32*)&x[(m0 + j / 9) * blocks + b] + j % 9);
        async_commit();
        async_wait(0);
        if (!BUG) __syncthreads();
        if (m < M && n < N) acc += term(w[n * blocks + b], *(const Q8_1*)staged[t]);
        __syncthreads();
    }
    if (m < M && n < N) y[m * N + n] = acc;
}
