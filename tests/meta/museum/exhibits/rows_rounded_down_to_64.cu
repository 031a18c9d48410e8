// [museum]
// source = "ggml-org/llama.cpp#2480"
// class = "leftover rows"
// essence = "The range of rows is rounded down to a multiple of 64."
// shows_when = "N is not a multiple of 64 (a vocabulary of 32,001)"
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

    if (BUG && n >= N / 64 * 64) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
