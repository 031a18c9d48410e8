// [museum]
// source = "NVIDIA/cutlass#3568"
// class = "end of K"
// essence = "The main loop consumes a whole buffer of stages per iteration without checking that all of them belong to
//   the row."
// shows_when = "K is not a multiple of the four stages' 128"
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

    const int end = BUG ? (blocks + 3) / 4 * 4 : blocks;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, end);
}
