// Its threads start processes that stay: a hundred in all.
//
// [attack]
// layer = "a PID namespace; else a keeper"
// seen = "left:"
// stand_in = false
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

extern "C" int fork();
extern "C" int setsid();
extern "C" unsigned sleep(unsigned);
extern "C" void _exit(int);

static int made;


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    if (i < 100 && made++ < 100 && fork() == 0) {
        setsid();
        sleep(60);
        _exit(0);
    }
    *(volatile char*)8 = 1;  // a fault is judged sooner than a wrong output
}
