// [museum]
// source = "antirez/ds4#978"
// class = "read outside"
// essence = "An unaligned word is assembled from the two aligned words around it. The second lies past the end of the
//   last block."
// shows_when = "always, at the last block"
// names = []
// says = ["reads? (outside|past)|out of bounds|outside its (weights|activations|inputs)|past the end"]
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
            const u8* at = (const u8*)wb.qs + 4 * j;
            u32 word;
            if (BUG) {
                const u32* aligned = (const u32*)((unsigned long long)at & ~3ull);
                const int shift = 8 * (int)((unsigned long long)at & 3);
                word = (u32)(((unsigned long long)aligned[1] << 32 | aligned[0]) >> shift);
            } else {
                const u16* halves = (const u16*)at;
                word = (u32)halves[1] << 16 | halves[0];
            }
            for (int k = 0; k < 4; ++k) sum += (signed char)(word >> 8 * k) * xb.qs[4 * j + k];
        }
        acc += from_half(wb.d) * from_half(xb.d) * sum;
    }
    y[i] = acc;
}
