// [museum]
// source = "ggml-org/llama.cpp#13299"
// class = "race"
// essence = "The last warp adds the partial sums of K without a barrier after the other warps'
//   stores."
// shows_when = "the last warp is faster than another"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
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
    // one thread block an output: two warps share its blocks
    __shared__ float partial[64];
    const int tx = threadIdx.x, blocks = K / 32;

    const i64 m = blockIdx.x / N, n = blockIdx.x % N;
    float acc = 0.0f;
    for (int b = tx; b < blocks; b += 64) acc += term(w[n * blocks + b], x[m * blocks + b]);
    partial[tx] = acc;
    if (!BUG) __syncthreads();
    if (tx == 63) {
        float sum = 0.0f;
        for (int j = 0; j < 64; ++j) sum += partial[j];
        y[m * N + n] = sum;
    }
}
