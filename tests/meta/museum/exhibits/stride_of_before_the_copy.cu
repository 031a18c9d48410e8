// [museum]
// source = "ggml-org/llama.cpp#10021"
// class = "strides"
// essence = "The weights were made contiguous, but the kernel gets their old stride."
// shows_when = "weights that were not contiguous"
// names = ["outside-buffers"]
// says = ["reads? (outside|past)|out of bounds|past the end|outside its"]
// right = [["int32 K / 32 + 8", "int32 K / 32"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K", "int32 K / 32 + 8"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K, int stride) {
    ONE_THREAD_AN_OUTPUT;
    y[i] = terms(w + n * stride, x + m * blocks, 0, blocks);
}
