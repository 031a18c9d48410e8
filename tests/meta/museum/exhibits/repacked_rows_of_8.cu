// [museum]
// source = "ikawrakow/ik_llama.cpp#911"
// class = "leftover rows"
// essence = "Rows are interleaved in groups of eight; rows after the last whole group are skipped."
// shows_when = "N is not a multiple of 8 (a vocabulary of 151,669)"
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

    if (BUG && n >= N / 8 * 8) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
