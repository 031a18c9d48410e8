// [museum]
// source = "paiml/trueno#159"
// class = "misaligned load"
// essence = "Words of four bytes are read from blocks of 210 bytes. Some GPUs tolerate it; Jetson reports a misaligned
//   address."
// shows_when = "odd blocks"
// names = []
// says = ["misaligned"]
// [/museum]
// [gguf-verify]
// formats = ["Q6_K"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q6_K* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < K / 256; ++b) {
        const Q6_K& wb = w[n * (K / 256) + b];
        for (int j = 0; j < 32; ++j) {
            u32 low;
            if (BUG) low = ((const u32*)wb.ql)[j];
            else low = wb.ql[4 * j] | wb.ql[4 * j + 1] << 8 | wb.ql[4 * j + 2] << 16 | (u32)wb.ql[4 * j + 3] << 24;
            for (int k = 0; k < 4; ++k) {
                const int at = 4 * j + k, half = at / 64, l = at % 64;  // a byte holds two values, 64 apart
                for (int high = 0; high < 2; ++high) {
                    const int value = 128 * half + l + 64 * high, q4 = low >> (8 * k + 4 * high) & 15;
                    const int q2 = wb.qh[32 * half + l % 32] >> 2 * (l / 32 + 2 * high) & 3;
                    acc += from_half(wb.d) * wb.scales[value / 16] * ((q4 | q2 << 4) - 32) * x[m * K + 256 * b + value];
                }
            }
        }
    }
    y[i] = acc;
}
