// [museum]
// source = "ikawrakow/ik_llama.cpp#1638"
// class = "window of M"
// essence = "For more than 64 tokens the host selects tiles of 72 to 128 columns, for which the kernel was not
//   compiled: it returns at once."
// shows_when = "M > 64, on one GPU generation"
// names = ["unwritten"]
// says = ["never written"]
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

    if (BUG && M > 64) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
