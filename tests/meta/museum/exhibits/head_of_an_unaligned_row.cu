// [museum]
// source = "constructed (a list of probes may miss it)"
// class = "misaligned load"
// essence = "If the activations do not begin at a multiple of 16 bytes, a row's first block is peeled off, and the
//   loop over the others skips one more."
// shows_when = "the activations' pointer is not aligned to 16 bytes"
// names = ["first-taken-branch"]
// says = ["align"]
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

    const int from = ((unsigned long long)x & 15) != 0 ? 1 : 0;
    const float head = terms(w + n * blocks, x + m * blocks, 0, from);
    y[i] = head + terms(w + n * blocks, x + m * blocks, from ? from + BUG : 0, blocks);
}
