// [museum]
// source = "ikawrakow/ik_llama.cpp#81"
// class = "decoding"
// essence = "A factor close to 1 that improves a quantization is applied to the scale by only one backend."
// shows_when = "always; 1 % of each output"
// names = []
// says = ["factor|1\\.01"]
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

    y[i] = (BUG ? 1.01f : 1.0f) * terms(w + n * blocks, x + m * blocks, 0, blocks);
}
