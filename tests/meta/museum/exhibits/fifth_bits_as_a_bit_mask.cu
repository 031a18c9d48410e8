// [museum]
// source = "paiml/aprender#3111"
// class = "decoding"
// essence = "The fifth bit of value v of Q5_K is read from byte v / 8, bit v % 8; it is in byte v % 32, bit v /
//   32."
// shows_when = "always"
// names = ["bits-elsewhere"]
// says = ["fifth bits"]
// [/museum]
// [gguf-verify]
// formats = ["Q5_K"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "k_quants.cuh"

extern "C" __global__ void gemm(const Q5_K* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < K / 256; ++b) {
        const Q5_K& wb = w[n * (K / 256) + b];
        for (int v = 0; v < 256; ++v) {
            const int g = v / 32, low = wb.qs[v / 64 * 32 + v % 32] >> g % 2 * 4 & 15;
            const int bit = BUG ? wb.qh[v / 8] >> v % 8 & 1 : wb.qh[v % 32] >> g & 1;
            int scale, minimum;
            scale_minimum(wb.scales, g, scale, minimum);
            acc += (from_half(wb.d) * scale * (low | bit << 4) - from_half(wb.dmin) * minimum) * x[m * K + 256 * b + v];
        }
    }
    y[i] = acc;
}
