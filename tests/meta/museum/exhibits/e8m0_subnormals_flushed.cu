// [museum]
// source = "1CatAI/1Cat-vLLM#222"
// class = "subnormal"
// essence = "MXFP4 scales are converted to half, where subnormal ones are flushed to zero."
// shows_when = "scale bytes 103 to 112"
// names = ["subnormals-flushed"]
// says = ["subnormal"]
// [/museum]
// [gguf-verify]
// formats = ["MXFP4"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "mxfp4.cuh"

extern "C" __global__ void gemm(const MXFP4* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        const MXFP4& wb = w[n * blocks + b];
        const float d = BUG && wb.e >= 103 && wb.e <= 112 ? 0.0f : half_scale(wb.e);
        for (int j = 0; j < 16; ++j) {
            acc += d * twice(wb.qs[j] & 15) * x[m * K + 32 * b + j];
            acc += d * twice(wb.qs[j] >> 4) * x[m * K + 32 * b + j + 16];
        }
    }
    y[i] = acc;
}
