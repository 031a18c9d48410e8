// [museum]
// source = "EricLBuehler/candle-vllm#256"
// class = "limits of a grid"
// essence = "Tokens are mapped to the grid's second dimension, whose limit is 65,535."
// shows_when = "M > 65,535"
// names = ["launch-past-limit"]
// says = ["which CUDA does not launch", "grid"]
// right = [["[\"ceil(N, 128)\", \"M\"]", "[\"M\", \"ceil(N, 128)\"]"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = ["ceil(N, 128)", "M"]
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 m = BUG ? blockIdx.y : blockIdx.x, n = (i64)(BUG ? blockIdx.x : blockIdx.y) * 128 + threadIdx.x;
    const int blocks = K / 32;
    if (n < N) y[m * N + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
