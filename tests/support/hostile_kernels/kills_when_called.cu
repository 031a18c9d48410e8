// Its threads kill the verifier, by its number and by that of the parent, in the middle of a launch.
//
// [attack]
// layer = "a PID namespace; else the scope of signals"
// seen = ""
// exits = [1]
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

#include "targets.h"

extern "C" int kill(int, int);


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    if (i == 0) kill(T_ROOT(), 9);
    y[i] = 0.0f;
}
