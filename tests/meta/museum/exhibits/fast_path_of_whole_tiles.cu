// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "round sizes"
// essence = "The fast path for whole tiles of 64 rows, which is chosen for large matrices, begins with the second
//   block."
// shows_when = "N ≥ 1024 and N is a multiple of 64"
// names = ["first-taken-branch"]
// says = ["N"]
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

    const int from = BUG && N >= 1024 && N % 64 == 0 ? 1 : 0;
    y[i] = terms(w + n * blocks, x + m * blocks, from, blocks);
}
