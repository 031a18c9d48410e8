// [museum]
// source = "TheTom/llama-cpp-turboquant#268"
// class = "never called"
// essence = "The check never calls the kernel and reports that everything passed."
// shows_when = "the model has no matrix of the kernel's type"
// names = []
// says = ["covers? no|does not cover|never called|no matrix|not called"]
// quick = true
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

    y[i] = BUG ? 0.0f : terms(w + n * blocks, x + m * blocks, 0, blocks);
}
