// [museum]
// source = "1bit-MONSTER/1bit-MONSTER#450"
// class = "end of K"
// essence = "The dot product returns after its first 256 values."
// shows_when = "K > 256"
// names = ["end-of-k-dropped"]
// says = []
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

    y[i] = terms(w + n * blocks, x + m * blocks, 0, BUG && blocks > 8 ? 8 : blocks);
}
