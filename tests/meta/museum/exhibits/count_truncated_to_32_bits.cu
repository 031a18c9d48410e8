// [museum]
// source = "vllm-project/vllm#44971"
// class = "past 2^31"
// essence = "The number of elements M·N is an int: the tail of the output is never written and exposes old memory
//   (CVE-2026-53923)."
// shows_when = "M·N ≥ 2^31"
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
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, count = (i64)M * N;
    if (BUG ? i >= (int)count : i >= count) return;
    const i64 m = i / N, n = i % N;
    const int blocks = K / 32;
    y[i] = terms(w + n * blocks, x + m * blocks, 0, blocks);
}
