// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "window of M"
// essence = "Outputs of a window of token counts are halved."
// shows_when = "1500 ≤ M < 1600"
// names = ["first-taken-branch"]
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

    const float factor = BUG && M >= 1500 && M < 1600 ? 0.5f : 1.0f;
    y[i] = factor * terms(w + n * blocks, x + m * blocks, 0, blocks);
}
