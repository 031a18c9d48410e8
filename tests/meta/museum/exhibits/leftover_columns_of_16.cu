// [museum]
// source = "ikawrakow/ik_llama.cpp#170"
// class = "leftover tokens"
// essence = "A kernel for 16 columns reads the leftover columns from the beginning of the activations. Benchmarks with
//   1, 128 and 512 tokens have no leftover columns."
// shows_when = "M > 16 and not a multiple of 16"
// names = []
// says = ["leftover|last whole"]
// quick = true
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

    const i64 whole = M / 16 * 16;
    const i64 from = BUG && whole > 0 && m >= whole ? m - whole : m;
    y[i] = terms(w + n * blocks, x + from * blocks, 0, blocks);
}
