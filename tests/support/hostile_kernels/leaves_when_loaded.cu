// Its library ends the process with exit code 0 when it is loaded.
//
// [attack]
// layer = "the end of the process is a fault in one line"
// seen = ""
// exits = [1, 2]
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

extern "C" void _exit(int);

__attribute__((constructor)) static void ends() { _exit(0); }


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    y[i] = 0.0f;
}
