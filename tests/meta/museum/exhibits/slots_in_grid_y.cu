// [museum]
// source = "ggml-org/llama.cpp#13537"
// class = "limits of a grid"
// essence = "Slots (top_k per token) are mapped to the grid's second dimension, whose limit is 65,535."
// shows_when = "M · top_k > 65,535"
// names = ["launch-past-limit"]
// says = ["which CUDA does not launch", "grid"]
// right = [["[\"ceil(N, 128)\", \"M * TOP_K\"]", "[\"M * TOP_K\", \"ceil(N, 128)\"]"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// parameters = ["weights", "activations", "ids", "output", "int32 N", "int32 K", "int32 TOP_K"]
// block = 128
// grid = ["ceil(N, 128)", "M * TOP_K"]
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, const int* ids, float* y, int N, int K, int top_k) {
    const i64 slot = BUG ? blockIdx.y : blockIdx.x, n = (i64)(BUG ? blockIdx.x : blockIdx.y) * 128 + threadIdx.x;
    const int blocks = K / 32;
    if (n < N) y[slot * N + n] = terms(w + (ids[slot] * (i64)N + n) * blocks, x + slot / top_k * blocks, 0, blocks);
}
