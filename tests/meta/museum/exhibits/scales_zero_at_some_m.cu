// [museum]
// source = "flashinfer-ai/flashinfer#3398"
// class = "window of M"
// essence = "The buffer for the activations' scales stays zero for some numbers of tokens."
// shows_when = "M is 384, 512 or 1024"
// names = []
// says = ["window|(for|at) M (of|from|=)|some numbers of tokens"]
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

    const float known = BUG && (M == 384 || M == 512 || M == 1024) ? 0.0f : 1.0f;
    y[i] = known * terms(w + n * blocks, x + m * blocks, 0, blocks);
}
