// [museum]
// source = "openvinotoolkit/openvino#34528"
// class = "half overflow"
// essence = "The integer sum is converted to half before the small scale is applied: above 65504 it becomes infinite."
// shows_when = "M > 240, large sums"
// names = ["half-accumulator"]
// says = ["65504|rounded to half"]
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
        const float sum = dot(wb, xb);
        acc += from_half(wb.d) * from_half(xb.d) * (BUG && M > 240 ? from_half(to_half(sum)) : sum);
    }
    y[i] = acc;
}
