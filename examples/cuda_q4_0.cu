// A kernel in CUDA C++: Q4_0 weights × Q8_1 activations, one thread an output.
//
//     gguf-verify model-Q4_0.gguf --kernel examples/cuda_q4_0.cu:gemm
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

struct Q4_0 {            // 18 bytes, 32 weights
    unsigned short d;    // scale, a half
    unsigned char qs[16];  // codes of 4 bits: 0…15 are the low nibbles, 16…31 the high ones
};

struct Q8_1 {          // 36 bytes, 32 activations
    unsigned short d;  // scale, a half
    unsigned short s;  // sum of the values before they were quantized, a half
    signed char qs[32];
};

__device__ float from_half(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, magnitude = h & 0x7FFFu;
    if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    // a half's exponent counts from -15, a float's from -127: 2^112 between them, also for subnormal numbers
    return __uint_as_float(sign | magnitude << 13) * 5192296858534827628530496329220096.0f;
}

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;  // M·N may be more than 2^31
    if (i >= M * N) return;
    const long long m = i / N, n = i % N, blocks = K / 32;
    float acc = 0.0f;
    for (long long b = 0; b < blocks; ++b) {
        const Q4_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 16; ++j) {
            sum += (wb.qs[j] & 15) * xb.qs[j];
            sum += (wb.qs[j] >> 4) * xb.qs[j + 16];
        }
        acc += from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s));  // w = d·(q - 8)
    }
    y[i] = acc;
}
