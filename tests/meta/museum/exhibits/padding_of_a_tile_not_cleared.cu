// [museum]
// source = "ggml-org/llama.cpp#8572"
// class = "stale or uninitialized"
// essence = "The padding of the weights is not cleared. Activations there are zeros, but garbage times zero may
//   be NaN."
// shows_when = "K is not a multiple of 256"
// names = []
// says = ["uninitiali[sz]ed"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 8
// grid = "M * N"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block for a token and a row: eight blocks in shared memory at a time
    __shared__ Q4_0 ws[8];
    __shared__ float partial[8];
    const i64 m = blockIdx.x / N, n = blockIdx.x % N;
    const int tx = threadIdx.x, blocks = K / 32;
    float acc = 0.0f;
    for (int b0 = 0; b0 < blocks; b0 += 8) {
        const int b = b0 + tx;
        Q8_1 xb = {};
        if (b < blocks) ws[tx] = w[n * blocks + b], xb = x[m * blocks + b];
        else if (!BUG) ws[tx] = Q4_0{};
        acc += term(ws[tx], xb);
    }
    partial[tx] = acc;
    __syncwarp();
    if (tx == 0) {
        float sum = 0.0f;
        for (int j = 0; j < 8; ++j) sum += partial[j];
        y[m * N + n] = sum;
    }
}
