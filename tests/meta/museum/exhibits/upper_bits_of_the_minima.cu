// [museum]
// source = "constructed (issue 16: the high bits of Q4_K's minima)"
// class = "decoding"
// essence = "The upper two bits of the minima of groups 4 to 7 are dropped."
// shows_when = "always, from value 128 on"
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
#include "museum.cuh"

#define BUG_MINIMUM BUG

// Scale and minimum of group g: six bits each, the upper two of groups 4 to 7 beside those of groups 0 to 3.
__device__ inline void scale_minimum(const u8* s, int g, int& scale, int& minimum) {
    scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    if (BUG_MINIMUM && g >= 4) minimum = s[g + 4] >> 4;
}

extern "C" __global__ void gemm(const Q4_K* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < K / 256; ++b) {
        const Q4_K& wb = w[n * (K / 256) + b];
        for (int v = 0; v < 256; ++v) {
            const int g = v / 32, q = wb.qs[v / 64 * 32 + v % 32] >> g % 2 * 4 & 15;
            int scale, minimum;
            scale_minimum(wb.scales, g, scale, minimum);
            acc += (from_half(wb.d) * scale * q - from_half(wb.dmin) * minimum) * x[m * K + 256 * b + v];
        }
    }
    y[i] = acc;
}
