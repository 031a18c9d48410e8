// Two exported kernels in one translation unit, checked without a tolerance: activations and weights are chosen so that
// no step of the product is rounded, and then every output is the exact one.
//
// A block of 32 activations holds integers, the largest of them 127: its scale is 1, and its codes are the integers.
// Weights are multiples of 1/4 and so small that every sum is a float. Exit code 0: all right, 1: wrong, 2: no GPU.
#include "q4_0.cuh"
#include "q4_k.cuh"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

static std::mt19937 generator(1);
static int drawn(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

// d = 1/2 and random codes; the values are (q - 8) / 2.
static void make_q4_0(uint8_t* block, double* values) {
    block[0] = 0x00, block[1] = 0x38;  // the half 0.5
    for (int i = 0; i < 16; ++i) {
        const int low = drawn(0, 15), high = drawn(0, 15);
        block[2 + i] = (uint8_t)(low | high << 4);
        values[i] = 0.5 * (low - 8), values[16 + i] = 0.5 * (high - 8);
    }
}

// d = 1/4, dmin = 1/2, and random scales, minima and codes; the values are d·scale·q - dmin·min.
static void make_q4_k(uint8_t* block, double* values) {
    int scale[8], min[8];
    for (int g = 0; g < 8; ++g) scale[g] = drawn(0, 63), min[g] = drawn(0, 63);
    block[0] = 0x00, block[1] = 0x34, block[2] = 0x00, block[3] = 0x38;
    for (int g = 0; g < 4; ++g) {
        block[4 + g] = (uint8_t)(scale[g] | scale[g + 4] >> 4 << 6);
        block[8 + g] = (uint8_t)(min[g] | min[g + 4] >> 4 << 6);
        block[12 + g] = (uint8_t)((scale[g + 4] & 15) | (min[g + 4] & 15) << 4);
    }
    for (int i = 0; i < 128; ++i) {
        const int group = i / 32 * 2, at = i / 32 * 64 + i % 32, low = drawn(0, 15), high = drawn(0, 15);
        block[16 + i] = (uint8_t)(low | high << 4);
        values[at] = 0.25 * scale[group] * low - 0.5 * min[group];
        values[at + 32] = 0.25 * scale[group + 1] * high - 0.5 * min[group + 1];
    }
}

static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
    std::exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 2 : 1);
}

template <class T>
static T* on_card(size_t bytes, const void* content = nullptr) {
    void* at = nullptr;
    check(cudaMalloc(&at, bytes ? bytes : 1));
    if (content) check(cudaMemcpy(at, content, bytes, cudaMemcpyHostToDevice));
    return (T*)at;
}

template <class Pack, class Multiply>
static bool right(const char* name, int64_t M, int64_t N, int64_t K, int block_values, int block_bytes, size_t packed_bytes,
                  size_t scratch_bytes, void (*make)(uint8_t*, double*), Pack pack, Multiply multiply) {
    std::vector<uint8_t> weights(N * K / block_values * block_bytes);
    std::vector<double> values(N * K);
    for (int64_t b = 0; b < N * K / block_values; ++b) make(&weights[b * block_bytes], &values[b * block_values]);
    std::vector<float> x(M * K), y(M * N);
    for (int64_t i = 0; i < M * K; ++i) x[i] = (float)(i % 32 == i / 32 % 32 ? 127 : drawn(-3, 3));

    auto* w = on_card<uint8_t>(weights.size(), weights.data());
    auto* packed = on_card<uint8_t>(packed_bytes);
    auto* scratch = on_card<uint8_t>(scratch_bytes);
    auto* given = on_card<float>(x.size() * sizeof(float), x.data());
    auto* out = on_card<float>(y.size() * sizeof(float));
    check(pack(w, packed));
    check(multiply(packed, given, out, scratch));
    check(cudaMemcpy(y.data(), out, y.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (void* memory : {(void*)w, (void*)packed, (void*)scratch, (void*)given, (void*)out}) check(cudaFree(memory));

    int64_t wrong = 0;
    for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < N; ++n) {
            double exact = 0;
            for (int64_t k = 0; k < K; ++k) exact += (double)x[m * K + k] * values[n * K + k];
            wrong += !((double)y[m * N + n] == exact);
        }
    }
    std::printf("%s: %lld of %lld outputs are wrong\n", name, (long long)wrong, (long long)(M * N));
    return wrong == 0;
}

int main() {
    namespace a = gguf::q4_0;
    namespace b = gguf::q4_k;
    const bool first = right("Q4_0", a::M, a::N, a::K, 32, 18, a::PACKED_BYTES, a::SCRATCH_BYTES, make_q4_0,
                             [](auto... of) { return a::pack(of...); }, [](auto... of) { return a::multiply(of...); });
    const bool second = right("Q4_K", b::M, b::N, b::K, 256, 144, b::PACKED_BYTES, b::SCRATCH_BYTES, make_q4_k,
                              [](auto... of) { return b::pack(of...); }, [](auto... of) { return b::multiply(of...); });
    return first && second ? 0 : 1;
}
