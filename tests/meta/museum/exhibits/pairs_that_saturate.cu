// [museum]
// source = "ikawrakow/ik_llama.cpp#427"
// class = "integer overflow"
// essence = "An instruction adds pairs of products of unsigned and signed bytes in 16 bits, and saturates."
// shows_when = "codes of the full range of a byte"
// names = []
// says = ["int16|16 bits|saturat"]
// [/museum]
// [gguf-verify]
// formats = ["Q8_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

__device__ inline int saturated(int sum) { return sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum; }

extern "C" __global__ void gemm(const Q8_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q8_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0, sum_x = 0;
        for (int j = 0; j < 32; j += 2) {
            int pair = (wb.qs[j] + 128) * xb.qs[j] + (wb.qs[j + 1] + 128) * xb.qs[j + 1];
            if (BUG) pair = saturated(pair);
            sum += pair, sum_x += xb.qs[j] + xb.qs[j + 1];
        }
        acc += from_half(wb.d) * from_half(xb.d) * (sum - 128 * sum_x);
    }
    y[i] = acc;
}
