// [museum]
// source = "ikawrakow/ik_llama.cpp#2502"
// class = "race"
// essence = "Lanes of a warp read shared memory that other lanes wrote, without __syncwarp."
// shows_when = "lanes of a warp do not run in lockstep (since Volta)"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 32
// grid = "M * N"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block an output: a warp shares its blocks
    __shared__ float partial[32];
    const int tx = threadIdx.x, blocks = K / 32;

    const i64 m = blockIdx.x / N, n = blockIdx.x % N;
    float acc = 0.0f;
    for (int b = tx; b < blocks; b += 32) acc += term(w[n * blocks + b], x[m * blocks + b]);
    partial[tx] = acc;
    if (!BUG) __syncwarp();
    if (tx == 31) {
        float sum = 0.0f;
        for (int j = 0; j < 32; ++j) sum += partial[j];
        y[m * N + n] = sum;
    }
}
