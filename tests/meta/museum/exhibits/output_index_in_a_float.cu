// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "narrow index"
// essence = "The index of an output is computed in a float, which skips odd numbers from 2^24 on."
// shows_when = "M · N > 2^24"
// names = []
// says = ["2.24|16,?777,?216|never written|unwritten"]
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

    const i64 at = BUG ? (i64)(float)i : i;
    y[at] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
