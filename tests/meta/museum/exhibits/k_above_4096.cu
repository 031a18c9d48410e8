// [museum]
// source = "intel/llm-scaler#388"
// class = "window of K"
// essence = "The row of activations is staged in a buffer of 4096 values."
// shows_when = "K > 4096"
// names = []
// says = ["outside its [0-9,]+ bytes of dynamic shared memory", "shared"]
// right = [["min(K, 4096)", "K"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * ceil(N, 64)"
// shared = "min(K, 4096) / 32 * 36"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block for 64 rows of one token
    const i64 across = ((i64)N + 63) / 64;
    const i64 m = blockIdx.x / across, n = blockIdx.x % across * 64 + threadIdx.x;
    const int blocks = K / 32;
    DYNAMIC_SHARED(room);
    u32* staged = (u32*)room;
    const u32* from = (const u32*)(x + m * blocks);
    for (int j = threadIdx.x; j < blocks * 9; j += 64) staged[j] = from[j];
    __syncthreads();
    if (n < N) y[m * N + n] = terms(w + n * blocks, (const Q8_1*)staged, 0, blocks);
}
