// [museum]
// source = "huggingface/candle#3476"
// class = "stale or uninitialized"
// essence = "The activations' workspace is padded to whole groups; the padding is never written, but the reader uses
//   it."
// shows_when = "K is not a multiple of 512"
// names = ["stale-tile"]
// says = ["uninitiali[sz]ed"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 32
// grid = "M * ceil(N, 32)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block for 32 rows of a token: 16 blocks of activations in shared memory at a time
    __shared__ Q8_1 xs[16];
    const i64 across = ((i64)N + 31) / 32;
    const i64 m = blockIdx.x / across, n = blockIdx.x % across * 32 + threadIdx.x;
    const int tx = threadIdx.x, blocks = K / 32;
    float acc = 0.0f;
    for (int b0 = 0; b0 < blocks; b0 += 16) {
        if (tx < 16 && b0 + tx < blocks) xs[tx] = x[m * blocks + b0 + tx];
        else if (tx < 16 && !BUG) xs[tx] = Q8_1{};
        __syncthreads();
        for (int j = 0; j < 16 && n < N; ++j) {
            const i64 b = b0 + j < blocks ? b0 + j : 0;  // the weights' padding is that of another block
            acc += term(w[n * blocks + b], xs[j]);
        }
        __syncthreads();
    }
    if (n < N) y[m * N + n] = acc;
}
