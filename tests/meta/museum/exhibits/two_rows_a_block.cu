// [museum]
// source = "ggml-org/whisper.cpp#2231"
// class = "leftover rows"
// essence = "Each thread block stores two rows of a token, even if only one is left: it overwrites the first output of
//   the next token."
// shows_when = "N is odd (51,865) and M > 1"
// names = ["window-of-n"]
// says = ["wrote outside its output", "race|out of bounds"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * ceil(N, 2), 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 across = ((i64)N + 1) / 2, i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    // the last pair of each token is stored first, as thread blocks come in any order
    const i64 m = M - 1 - i / across, n0 = i % across * 2;
    const int blocks = K / 32;
    if (m < 0) return;
    for (i64 n = n0; n < n0 + 2; ++n)
        if (n < N) y[m * N + n] = terms(w + n * blocks, x + m * blocks, 0, blocks);
        else if (BUG && m + 1 < M) y[m * N + n] = terms(w, x + m * blocks, 0, blocks);
}
