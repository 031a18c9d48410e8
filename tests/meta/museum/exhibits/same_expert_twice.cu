// [museum]
// source = "ggml-org/llama.cpp#27015"
// class = "experts"
// essence = "Each expert searches the ids of a token for its own and stops at the first match: a second slot with the
//   same expert is dropped."
// shows_when = "a token selects the same expert twice"
// names = []
// says = ["one expert in all slots of a token.*never written"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// parameters = ["weights", "activations", "ids", "output", "int32 M", "int32 N", "int32 K", "int32 TOP_K"]
// block = 128
// grid = ["ceil(M * N, 128)", "E"]
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, const int* ids, float* y, int M, int N, int K,
                                int top_k) {
    ONE_THREAD_AN_OUTPUT;

    const int expert = blockIdx.y;
    for (int t = 0; t < top_k; ++t) {
        if (ids[m * top_k + t] != expert) continue;
        y[(m * top_k + t) * N + n] = terms(w + (expert * (i64)N + n) * blocks, x + m * blocks, 0, blocks);
        if (BUG) break;
    }
}
