// [museum]
// source = "flashinfer-ai/flashinfer#2996"
// class = "barrier"
// essence = "The barrier before the reduction is in the branch of the computing warps; the others wait at another
//   one."
// shows_when = "always undefined; hangs on some GPUs"
// names = []
// says = ["barrier|diverge"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * N"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block an output: 64 threads share its blocks
    __shared__ float partial[64];
    const int tx = threadIdx.x, blocks = K / 32;

    const i64 m = blockIdx.x / N, n = blockIdx.x % N;
    if (tx < 32) {
        float acc = 0.0f;
        for (int b = tx; b < blocks; b += 32) acc += term(w[n * blocks + b], x[m * blocks + b]);
        partial[tx] = acc;
        if (BUG) __syncthreads();
    }
    if (!BUG || tx >= 32) __syncthreads();
    if (tx == 0) {
        float sum = 0.0f;
        for (int j = 0; j < 32; ++j) sum += partial[j];
        y[m * N + n] = sum;
    }
}
