// [museum]
// source = "lablup/mlxcel#652"
// class = "past 2^31"
// essence = "The index of an output is computed in 32 bits: tokens times vocabulary wraps to zero."
// shows_when = "M·N ≥ 2^32 (32,768 tokens by 131,072)"
// names = ["index-past-2^31"]
// says = ["2\\^31|2³¹|int32|32.bits?|integer overflow"]
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

    const i64 at = BUG ? (i64)((u32)m * (u32)N + (u32)n) : m * N + n;
    y[at] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
