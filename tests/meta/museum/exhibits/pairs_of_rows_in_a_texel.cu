// [museum]
// source = "ggml-org/llama.cpp#28575"
// class = "leftover rows"
// essence = "Even rows are stored first, and rows are read with a stride of N / 2, rounded down."
// shows_when = "N ≥ 512 and odd"
// names = []
// says = ["order of (the )?rows|other rows|permuted|stride"]
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

    const i64 even = ((i64)N + 1) / 2, stride = BUG && N >= 512 ? N / 2 : even;
    const i64 at = n % 2 * stride + n / 2, row = at < even ? 2 * at : 2 * (at - even) + 1;
    y[i] = terms(w + row * blocks, x + m * blocks, 0, blocks);
}
