// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "narrow index"
// essence = "The number of a row is kept in a short."
// shows_when = "N > 32,768"
// names = ["outside-buffers"]
// says = ["2.15|32,?768|N ≥|window of N|rows? (from|of)|outside its buffers"]
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

    const i64 row = BUG ? (short)n : n;
    y[i] = terms(w + row * blocks, x + m * blocks, 0, blocks);
}
