// [museum]
// source = "NVIDIA/cuml#6578"
// class = "race"
// essence = "Thread 0 adds the partial sums in shared memory while the other threads already write those of the next
//   output."
// shows_when = "a thread block computes more than one output"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 64
// grid = "M * ceil(N, 8)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    // one thread block for eight rows of a token: 64 threads share its blocks
    __shared__ float partial[64];
    const int tx = threadIdx.x, blocks = K / 32;

    const i64 across = ((i64)N + 7) / 8, m = blockIdx.x / across, n0 = blockIdx.x % across * 8;
    for (i64 n = n0; n < n0 + 8 && n < N; ++n) {
        float acc = 0.0f;
        for (int b = tx; b < blocks; b += 64) acc += term(w[n * blocks + b], x[m * blocks + b]);
        partial[tx] = acc;
        __syncthreads();
        if (tx == 0) {
            float sum = 0.0f;
            for (int j = 0; j < 64; ++j) sum += partial[j];
            y[m * N + n] = sum;
        }
        if (!BUG) __syncthreads();
    }
}
