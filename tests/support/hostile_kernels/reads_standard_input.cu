// It includes standard input, which would wait for the user, and bytes of the system.
//
// [attack]
// layer = "compilers get no standard input"
// seen = ""
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

#include "/dev/stdin"
__asm__(".section .note.users\n.incbin \"/etc/passwd\"\n.text\n");

extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    *(volatile char*)8 = 1;  // a fault is judged sooner than a wrong output
}
