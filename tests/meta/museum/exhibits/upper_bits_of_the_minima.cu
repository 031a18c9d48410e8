// [museum]
// source = "constructed (issue 16: the high bits of Q4_K's minima)"
// class = "decoding"
// essence = "The upper two bits of the minima of groups 4 to 7 are dropped."
// shows_when = "always, for values from 128 on"
// names = ["bits-elsewhere"]
// says = ["(upper|high) bits|minim"]
// quick = true
// [/museum]
// [gguf-verify]
// formats = ["Q4_K"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "k_quants.cuh"

extern "C" __global__ void gemm(const Q4_K* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < K / 256; ++b) {
        const Q4_K& wb = w[n * (K / 256) + b];
        for (int v = 0; v < 256; ++v) {
            const int g = v / 32, q = wb.qs[v / 64 * 32 + v % 32] >> g % 2 * 4 & 15;
            int scale, minimum;
            scale_minimum(wb.scales, g, scale, minimum);
            if (BUG && g >= 4) minimum = wb.scales[g + 4] >> 4;
            acc += (from_half(wb.d) * scale * q - from_half(wb.dmin) * minimum) * x[m * K + 256 * b + v];
        }
    }
    y[i] = acc;
}
