// Its templates double at each level, so that the compiler would need years and all memory.
//
// [attack]
// layer = "limits of memory and time for compilers, whose processes end with them"
// seen = "over: "
// exits = [2, 3]
// stand_in = false
// seconds = 200
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

template <int Depth, long long Path> struct Doubles {
    static constexpr long long value = Doubles<Depth - 1, 2 * Path>::value + Doubles<Depth - 1, 2 * Path + 1>::value;
};
template <long long Path> struct Doubles<0, Path> {
    static constexpr long long value = Path;
};
static const long long bomb = Doubles<40, 1>::value;

extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    y[i] = 0.0f;
}
