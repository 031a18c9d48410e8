// [museum]
// source = "ggml-org/llama.cpp#3921"
// class = "limits of a grid"
// essence = "Rows are mapped to the grid's second dimension, whose limit is 65,535."
// shows_when = "N > 65,535 (a vocabulary of 250,880)"
// names = ["launch-past-limit"]
// says = ["which CUDA does not launch", "grid"]
// right = [["[\"ceil(M, 32)\", \"N\"]", "[\"N\", \"ceil(M, 32)\"]"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 32
// grid = ["ceil(M, 32)", "N"]
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 n = BUG ? blockIdx.y : blockIdx.x, m = (i64)(BUG ? blockIdx.x : blockIdx.y) * 32 + threadIdx.x;
    const int blocks = K / 32;
    if (m < M) y[m * N + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
