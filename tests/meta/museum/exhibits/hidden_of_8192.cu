// [museum]
// source = "deepseek-ai/DeepEP#722"
// class = "window of K"
// essence = "The staging buffer only has room for rows shorter than 8192. With longer rows the kernel returns before
//   it writes anything."
// shows_when = "K ≥ 8192"
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

    if (BUG && K >= 8192) return;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
