// It handles its own access to no memory by going back to it.
//
// [attack]
// layer = "a deadline; the handlers of the host are put back before each launch"
// seen = ""
// exits = [1]
// limit = 1.0
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

extern "C" void (*signal(int, void (*)(int)))(int);

static void again(int) {}

__attribute__((constructor)) static void swallows() { signal(11, again); }


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    signal(11, again);
    *(volatile char*)8 = 1;
    y[i] = 0.0f;
}
