// Its library never finishes to be loaded, and ignores signals.
//
// [attack]
// layer = "a deadline of the start that is not the compiler's"
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

extern "C" unsigned sleep(unsigned);
extern "C" void (*signal(int, void (*)(int)))(int);

__attribute__((constructor)) static void hangs() {
    for (int number = 1; number < 64; ++number) signal(number, (void (*)(int))1);
    for (int i = 0; i < 60; ++i) sleep(1);
}


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    y[i] = 0.0f;
}
