// [museum]
// source = "constructed (issue 16: the first bug that kernels of Q8_0 have)"
// class = "misaligned load"
// essence = "Words of four bytes are read from byte 2 of blocks of 34 bytes: in even blocks no word is aligned."
// shows_when = "always"
// names = []
// says = ["misaligned"]
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

extern "C" __global__ void gemm(const Q8_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const Q8_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 8; ++j) {
            const u16* halves = (const u16*)wb.qs + 2 * j;
            const u32 word = BUG ? *(const u32*)(wb.qs + 4 * j) : (u32)halves[1] << 16 | halves[0];
            for (int k = 0; k < 4; ++k) sum += (signed char)(word >> 8 * k) * xb.qs[4 * j + k];
        }
        acc += from_half(wb.d) * from_half(xb.d) * sum;
    }
    y[i] = acc;
}
