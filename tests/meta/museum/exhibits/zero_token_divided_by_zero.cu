// [museum]
// source = "microsoft/BitNet#123"
// class = "block of zeros"
// essence = "A token is divided by its largest value, even if that is zero."
// shows_when = "all activations of a token are zeros"
// names = []
// says = ["0/0|zero[- ]block|block of zeros|token of zeros|zero[- ]token"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "quantizer.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const float* x, float* y, int M, int N, int K) {
    ONE_THREAD_AN_OUTPUT;

    float most = 0.0f;
    for (int b = 0; b < blocks; ++b) most = largest(x + m * K + 32 * b) > most ? largest(x + m * K + 32 * b) : most;
    // to the power of two below it, so that the division is exact
    most = __uint_as_float(__float_as_uint(most) & 0x7F800000u);
    if (!BUG && most == 0.0f) most = 1.0f;
    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        float part = 0.0f;
        for (int j = 0; j < 32; ++j) part += (code(w[n * blocks + b], j) - 8) * (x[m * K + 32 * b + j] / most);
        acc += from_half(w[n * blocks + b].d) * part;
    }
    y[i] = acc * most;
}
