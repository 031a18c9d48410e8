// [museum]
// source = "huggingface/candle#3863"
// class = "leftover rows"
// essence = "Groups of four rows are always stored whole: stores past the last row overwrite the next token's
//   outputs."
// shows_when = "N is not a multiple of 4"
// names = []
// says = ["wrote outside its output", "race|out of bounds"]
// quick = true
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * ceil(N, 4), 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 across = ((i64)N + 3) / 4, i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 m = i / across, n0 = i % across * 4;
    const int blocks = K / 32;
    if (m >= M) return;
    for (i64 n = n0; n < n0 + 4; ++n)
        if (n < N) y[m * N + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
        else if (BUG) y[m * N + n] = 0.0f;
}
