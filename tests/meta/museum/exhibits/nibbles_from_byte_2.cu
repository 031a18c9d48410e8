// [museum]
// source = "ml-explore/mlx#3664"
// class = "decoding"
// essence = "The nibbles of Q4_1 are read from byte 2, where its minimum is, not from byte 4."
// shows_when = "always"
// names = []
// says = ["byte 2|wrong byte|from byte"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_1"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_1* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q4_1& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        const u8* qs = (const u8*)&wb + (BUG ? 2 : 4);
        int sum = 0;
        for (int j = 0; j < 16; ++j) sum += (qs[j] & 15) * xb.qs[j] + (qs[j] >> 4) * xb.qs[j + 16];
        acc += from_half(wb.d) * from_half(xb.d) * sum + from_half(wb.m) * from_half(xb.s);
    }
    y[i] = acc;
}
