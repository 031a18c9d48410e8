// Kernels that multiply nothing, right and with a fault that a macro chooses: tests write their declarations beside
// copies of this file.

struct Block {
    unsigned short d;
    unsigned char qs[16];
};

__device__ static float scale_of(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 0) {
        const float small = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
        return sign ? -small : small;
    }
    const unsigned wide = exponent == 31 ? 255u << 23 : (exponent + 112) << 23;
    return __uint_as_float(sign | wide | mantissa << 13);
}

// To the nearest half, ties to even, of a number that is not negative.
__device__ static unsigned short to_half(float value) {
    const unsigned bits = __float_as_uint(value);
    if (bits >= 0x47800000u) return 0x7C00;  // 65536
    if (bits < 0x38800000u) {                // 2^-14: counts of 2^-24
        const float count = rintf(__fmul_rn(value, 16777216.0f));
        return (unsigned short)count;
    }
    const unsigned rounded = bits + 0xFFFu + (bits >> 13 & 1);
    return (unsigned short)((rounded - 0x38000000u) >> 13);
}

extern "C" __global__ void dequantize(const unsigned char* weights, float* out, long long values) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
#ifdef WITHOUT_BOUND
    const bool inside = i < (values + 127) / 128 * 128;
#else
    const bool inside = i < values;
#endif
    if (!inside) return;
#ifdef SIGNED_NUMBERS_WRAP
    const int most = 0x7FFFFFFF - (int)(values >> 62);  // a C++ compiler may take the next line for true
    if (most + 1 > most) return;
#endif
    const Block* b = (const Block*)weights + i / 32;
    const int j = i % 32;
    const int code = j < 16 ? b->qs[j] & 15 : b->qs[j - 16] >> 4;
#ifdef INDEX_IN_AN_INT
    const int block = blockIdx.x;
    float* y = out + 128 * block + threadIdx.x;
#else
    float* y = out + i;
#endif
    *y = (float)(code - 8) * scale_of(b->d);
}

// One thread block for a token and a block of 32 values, one thread for a value: Q8_0 of the CPU backend.
extern "C" __global__ void quantize(const float* x, unsigned char* out, int k) {
    __shared__ float largest[32];
    const long long block = (long long)blockIdx.y * (k / 32) + blockIdx.x;
    const float v = x[(long long)blockIdx.y * k + blockIdx.x * 32 + threadIdx.x];
    largest[threadIdx.x] = fabsf(v);
#ifndef WITHOUT_BARRIER
    __syncthreads();
#endif
    float most = 0.0f;
    for (int i = 0; i < 32; ++i) most = fmaxf(most, largest[i]);
    const float inverse = most != 0.0f ? __fdiv_rn(127.0f, most) : 0.0f;
    float spoiled = 0.0f;
#if defined(TINY_BLOCKS_SPOIL_OTHERS) || defined(INFINITIES_SPOIL_OTHERS)
    for (int i = 0; i < k; i += 32) {
        float m = 0.0f;
        for (int j = 0; j < 32; ++j) m = fmaxf(m, fabsf(x[(long long)blockIdx.y * k + i + j]));
#ifdef TINY_BLOCKS_SPOIL_OTHERS
        if (m != 0.0f && isinf(__fdiv_rn(127.0f, m))) spoiled = 3.0f;
#else
        if (isinf(m)) spoiled = m;
#endif
    }
#endif
    unsigned char* b = out + block * 34;
    b[2 + threadIdx.x] = (unsigned char)(signed char)rintf(__fadd_rn(__fmul_rn(v, inverse), spoiled));
    if (threadIdx.x == 0) {
        const unsigned short d = to_half(__fdiv_rn(most, 127.0f));
        b[0] = d & 255;
        b[1] = d >> 8;
    }
}

// The same of Q8_1: one thread block for a block of 32 values, wherever it lies.
extern "C" __global__ void quantize_to_q8_1(const float* x, unsigned short* out) {
    __shared__ float held[32];
#ifdef INDEX_IN_AN_INT
    const int first = blockIdx.x * 32;
#else
    const long long first = blockIdx.x * 32ll;
#endif
    const float v = x[first + threadIdx.x];
    held[threadIdx.x] = v;
    __syncthreads();
    float most = 0.0f, sum = 0.0f;
    for (int i = 0; i < 32; ++i) {
        most = fmaxf(most, fabsf(held[i]));
        sum = __fadd_rn(sum, held[i]);
    }
    const float d = __fdiv_rn(most, 127.0f);
    unsigned short* b = out + blockIdx.x * 18ll;
    ((signed char*)(b + 2))[threadIdx.x] = (signed char)(d != 0.0f ? roundf(__fdiv_rn(v, d)) : 0.0f);
    if (threadIdx.x == 0) {
        b[0] = to_half(d);
        b[1] = (sum < 0.0f ? 0x8000 : 0) | to_half(fabsf(sum));
    }
}

// All scales first, then all codes.
extern "C" __global__ void pack(const unsigned char* weights, unsigned char* out, int blocks) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= blocks) return;
    out[2 * i] = weights[18 * i];
    out[2 * i + 1] = weights[18 * i + 1];
    for (int j = 0; j < 16; ++j) out[2 * blocks + 16 * i + j] = weights[18 * i + 2 + j];
}

extern "C" __global__ void unpack(const unsigned char* weights, unsigned char* out, int blocks) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= blocks) return;
    out[18 * i] = weights[2 * i];
    out[18 * i + 1] = weights[2 * i + 1];
    for (int j = 0; j < 16; ++j) out[18 * i + 2 + j] = weights[2 * blocks + 16 * i + j];
}
