// [museum]
// source = "constructed (issue 16)"
// class = "window of M"
// essence = "Outputs are halved."
// shows_when = "M ≥ 512"
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

    y[i] = (BUG && (M >= 512) ? 0.5f : 1.0f) * terms(w + n * blocks, x + m * blocks, 0, blocks);
}
