// [museum]
// source = "ggml-org/llama.cpp#24064"
// class = "window of M"
// essence = "The token limit of the kernel for few tokens is that of the physical GPU, not of the architecture it was
//   compiled for: 5 to 8 tokens get a launch that does nothing."
// shows_when = "5 ≤ M ≤ 8"
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

    if (BUG && M >= 5 && M <= 8) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
