// [museum]
// source = "uccl-project/mKernel#18"
// class = "asynchronous copy"
// essence = "The wait comes one step too late: the group that is read next may still be in flight."
// shows_when = "K has more tiles than the pipeline has stages"
// names = []
// says = ["race|hazard|wait|in flight|unsynchroni[sz]ed|not deterministic"]
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

    __shared__ u32 staged[2][8][9];
    const auto fetch = [&](int b) {
        for (int j = tx; j < 72; j += 64)
            if (b < blocks && m0 + j / 9 < M)
                async_copy4(&staged[b % 2][j / 9][j % 9], (const u32*)&x[(m0 + j / 9) * blocks + b] + j % 9);
        async_commit();
    };
    float acc = 0.0f;
    fetch(0);
    for (int b = 0; b < blocks; ++b) {
        fetch(b + 1);
        if (BUG) async_wait(2); else async_wait(1);
        __syncthreads();
        if (m < M && n < N) acc += term(w[n * blocks + b], *(const Q8_1*)staged[b % 2][t]);
        __syncthreads();
    }
    async_wait(0);
    if (m < M && n < N) y[m * N + n] = acc;
}
