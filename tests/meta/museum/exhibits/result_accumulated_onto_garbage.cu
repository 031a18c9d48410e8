// [museum]
// source = "NVIDIA/cuda-quantum#2475"
// class = "stale or uninitialized"
// essence = "The kernel adds to its output, which was not cleared."
// shows_when = "always; rarely noticed, because fresh memory is often zero"
// names = ["unwritten"]
// says = ["uninitiali[sz]ed"]
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

    const float acc = terms(w + n * blocks, x + m * blocks, 0, blocks);
    if (BUG) y[i] += acc;
    else y[i] = acc;
}
