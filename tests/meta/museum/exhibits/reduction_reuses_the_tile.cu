// [museum]
// source = "huggingface/optimum-quanto#332 (second)"
// class = "race"
// essence = "The reduction of a thread block reuses the last tile's memory while slower warps still read that
//   tile."
// shows_when = "more than one warp"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * N"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block an output: two warps share its blocks
    __shared__ float room[64];
    const int tx = threadIdx.x, blocks = K / 32;
    const i64 m = blockIdx.x / N, n = blockIdx.x % N;
    // room holds first the scales of the weights of this row, as they are needed, then partial sums
    float acc = 0.0f;
    for (int b0 = 0; b0 < blocks; b0 += 64) {
        room[tx] = b0 + tx < blocks ? from_half(w[n * blocks + b0 + tx].d) : 0.0f;
        __syncthreads();
        const int other = 63 - tx, b = b0 + other;
        if (b < blocks) {
            const Q8_1& xb = x[m * blocks + b];
            acc += room[other] * (from_half(xb.d) * dot(w[n * blocks + b], xb) - 8.0f * from_half(xb.s));
        }
        if (!BUG || b0 + 64 < blocks) __syncthreads();
    }
    room[tx] = acc;
    __syncthreads();
    if (tx == 0) {
        float sum = 0.0f;
        for (int j = 0; j < 64; ++j) sum += room[j];
        y[m * N + n] = sum;
    }
}
