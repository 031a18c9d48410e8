// [museum]
// source = "ggml-org/llama.cpp#13294"
// class = "race"
// essence = "The first warp writes a table of indices to shared memory, and all warps read it without a
//   barrier."
// shows_when = "some warp is faster than the first one"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "ceil(M, 8) * ceil(N, 8)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    A_TILE_OF_OUTPUTS;

    __shared__ i64 token[8];
    if (tx < 8) token[tx] = m0 + tx < M ? m0 + tx : M - 1;
    if (!BUG) __syncthreads();
    const float acc = n < N ? terms(w + n * blocks, x + token[t] * blocks, 0, blocks) : 0.0f;
    if (m < M && n < N) y[m * N + n] = acc;
}
