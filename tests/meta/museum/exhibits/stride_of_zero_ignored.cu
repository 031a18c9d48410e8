// [museum]
// source = "ml-explore/mlx#3480"
// class = "strides"
// essence = "The slots of a token share its activations (stride zero). The kernel for few tokens steps from slot to
//   slot as if each had its own."
// shows_when = "few tokens, and more than one slot"
// names = ["outside-buffers"]
// says = ["reads? (outside|past)|out of bounds|past the end|outside its"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// parameters = ["weights", "activations", "ids", "output", "int32 M", "int32 N", "int32 K", "int32 TOP_K"]
// block = 128
// grid = "ceil(M * TOP_K * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, const int* ids, float* y, int M, int N, int K,
                                int top_k) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)M * top_k * N) return;
    const i64 slot = i / N, n = i % N, token = BUG && M < 6 ? slot : slot / top_k;
    const int blocks = K / 32;
    y[i] = terms(w + (ids[slot] * (i64)N + n) * blocks, x + token * blocks, 0, blocks);
}
