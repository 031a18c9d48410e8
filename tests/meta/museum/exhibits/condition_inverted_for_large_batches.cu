// [museum]
// source = "ggml-org/llama.cpp#12098"
// class = "window of M"
// essence = "The condition that selects the kernel for large batches is inverted, and the launched kernel has no
//   code."
// shows_when = "M ≥ 512, on one GPU generation"
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

    if (BUG && M >= 512) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
