// [museum]
// source = "nntrainer/nntrainer#3187"
// class = "leftover tokens"
// essence = "Only whole groups of four tokens are multiplied; the outputs of the other tokens are zero."
// shows_when = "M is not a multiple of 4"
// names = []
// says = ["leftover|last whole"]
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

    y[i] = BUG && m >= M / 4 * 4 ? 0.0f : terms(w + n * blocks, x + m * blocks, 0, blocks);
}
