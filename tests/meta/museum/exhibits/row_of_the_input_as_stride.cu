// [museum]
// source = "ggml-org/llama.cpp#5386"
// class = "strides"
// essence = "Tokens of the output are written with the number of matrix rows as stride, although the output's rows are
//   longer."
// shows_when = "2 to 4 tokens, and an output wider than the matrix"
// names = ["outside-buffers"]
// says = ["outside its output", "never written", "between or after its rows"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K", "int32 N + 32"]
// operands.output = { stride = "N + 32" }
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K, int stride) {
    ONE_THREAD_AN_OUTPUT;

    const i64 step = BUG && M >= 2 && M <= 4 ? N : stride;
    y[m * step + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
