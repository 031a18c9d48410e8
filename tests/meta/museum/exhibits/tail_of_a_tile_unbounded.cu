// [museum]
// source = "ml-explore/mlx#3912"
// class = "end of K"
// essence = "The last tile along K lies half outside the row, and the tiled kernel, used for prefill, multiplies all
//   of it. Decoding uses another kernel, which is correct."
// shows_when = "more than 8 tokens, K is not a multiple of the tile's 64"
// names = []
// says = ["past the (end|row)|out of bounds|reads? (outside|past)|next row"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    const int end = BUG && M > 8 ? blocks + blocks % 2 : blocks;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, end);
}
