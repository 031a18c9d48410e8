// [museum]
// source = "vllm-project/vllm#9391"
// class = "past 2^31"
// essence = "The offset of a token's activations, in values, is an int."
// shows_when = "M·K ≥ 2^31"
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

    const i64 value = BUG ? (i64)(int)((u32)m * (u32)K) : m * K;
    y[i] = terms(w + n * blocks, x + value / 32, 0, blocks);
}
