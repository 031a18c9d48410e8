// [museum]
// source = "ml-explore/mlx#4250"
// class = "leftover rows"
// essence = "The grid over the rows is rounded down: rows past the last whole 64 are never written."
// shows_when = "N is not a multiple of 64"
// names = ["unwritten"]
// says = ["never written", "which CUDA does not launch"]
// right = [["M * (N / 64)", "M * ceil(N, 64)"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * (N / 64)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 across = gridDim.x / M;
    const i64 m = blockIdx.x / across, n = blockIdx.x % across * 64 + threadIdx.x;
    const int blocks = K / 32;
    if (n < N) y[m * N + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
