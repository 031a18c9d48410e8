// [museum]
// source = "ikawrakow/ik_llama.cpp#213"
// class = "end of K"
// essence = "Two rows are multiplied at a time, four blocks per step; leftover blocks are only added to one of the
//   two."
// shows_when = "K is not a multiple of 128 (576)"
// names = ["end-of-k-dropped"]
// says = []
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

    const int whole = blocks - blocks % 4;
    float acc = terms(w + n * blocks, x + m * blocks, 0, whole);
    if (!BUG || n % 2 == 0) acc += terms(w + n * blocks, x + m * blocks, whole, blocks);
    y[i] = acc;
}
