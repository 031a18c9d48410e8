// A wrong kernel that attacks nobody: what a run compiles for it is in the cache when the attacks begin.
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M * N) y[i] = 0.0f;
}
