// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "round sizes"
// essence = "The fast path for whole stages of the pipeline, which is chosen for long rows, ends one block early."
// shows_when = "K ≥ 2048 and K is a multiple of 512"
// names = ["first-taken-branch"]
// says = ["K|last block"]
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

    const int to = BUG && K >= 2048 && K % 512 == 0 ? blocks - 1 : blocks;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, to);
}
