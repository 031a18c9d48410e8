// [museum]
// source = "huggingface/candle#3476 (its workspace)"
// class = "stale or uninitialized"
// essence = "The quantizer writes K activations per token to a workspace whose rows are padded to 512. The padding is
//   not cleared, but the product reads it."
// shows_when = "K is not a multiple of 512, and the memory contains NaN"
// names = ["stale-tile"]
// says = ["uninitiali[sz]ed", "not deterministic: .*nan"]
// right = [["16 * 36\" }", "16 * 36\", zeroed = true }"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// takes = "float32"
// macros = { BUG = 1 }
// operands.weights = { columns = "ceil(K, 512) * 512" }
// operands.workspace = { scratch = "M * ceil(K, 512) * 16 * 36" }
// [[launches]]
// symbol = "quantize"
// parameters = ["activations", "workspace", "int32 M", "int32 K"]
// block = 128
// grid = "ceil(M * K / 32, 128)"
// [[launches]]
// symbol = "multiply"
// parameters = ["weights", "workspace", "output", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]
#include "quantizer.cuh"

extern "C" __global__ void quantize(const float* x, Q8_1* workspace, int M, int K) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const int blocks = K / 32, padded = (K + 511) / 512 * 16;
    if (i >= (i64)M * blocks) return;
    const float *v = x + i * 32, d = largest(v) / 127.0f;
    Q8_1& to = workspace[i / blocks * padded + i % blocks];
    to.d = to_half(d);
    to.s = to_half(sum_of(v));
    for (int j = 0; j < 32; ++j) to.qs[j] = d > 0.0f ? (signed char)rounded(v[j] / d) : 0;
}

extern "C" __global__ void multiply(const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const int padded = (K + 511) / 512 * 16;
    if (i < (i64)M * N) y[i] = terms(w + i % N * padded, x + i / N * padded, 0, padded);
}
