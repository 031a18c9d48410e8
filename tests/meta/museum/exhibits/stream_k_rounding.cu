// [museum]
// source = "ggml-org/llama.cpp#8311"
// class = "end of K"
// essence = "The boundaries between parts of K, including the last one, are rounded down to whole iterations of 128
//   values: the rest of the row is dropped."
// shows_when = "K is not a multiple of 128 (DeepSeek)"
// names = ["end-of-k-dropped", "window-of-k"]
// says = []
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

    float acc = 0.0f;
    for (int part = 0; part < 3; ++part) {
        int from = (int)((i64)part * blocks / 3), to = (int)((i64)(part + 1) * blocks / 3);
        from -= from % 4;
        if (BUG || part < 2) to -= to % 4;
        acc += terms(w + n * blocks, x + m * blocks, from, to);
    }
    y[i] = acc;
}
