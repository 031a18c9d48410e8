// [museum]
// source = "mit-han-lab/llm-awq#201"
// class = "shared memory"
// essence = "The launch does not request the dynamic shared memory that the kernel uses."
// shows_when = "always"
// names = []
// says = ["bytes of dynamic shared memory"]
// right = [["shared = \"0\"", "shared = \"K / 32 * 36\""]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * ceil(N, 64)"
// shared = "0"
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
