// Its library, where the verifier itself loads it, writes a report that says "verified" and ends the process.
//
// [attack]
// layer = "the verifier loads nothing that is not its own"
// seen = "forged"
// stand_in = false
// exits = [1, 2, 3]
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

extern "C" int getpid();
extern "C" int execl(const char*, const char*, ...);

__attribute__((constructor)) static void forges() {
    if (getpid() == T_ROOT()) execl("/bin/cp", "cp", T_HONEST, T_REPORT, (char*)0);
}


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    *(volatile char*)8 = 1;  // a fault is judged sooner than a wrong output
}
