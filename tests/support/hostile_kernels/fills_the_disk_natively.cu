// Its library has an array of 8 GB that is not zero.
//
// [attack]
// layer = "limits of memory and file size for compilers and what they start"
// seen = "over: |left:"
// exits = [2, 3]
// stand_in = false
// seconds = 60
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

__asm__(".data\n.fill 8589934592, 1, 7\n.text\n");

extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    y[i] = 0.0f;
}
