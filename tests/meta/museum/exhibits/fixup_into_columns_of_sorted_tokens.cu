// [museum]
// source = "ggml-org/llama.cpp#17089"
// class = "experts"
// essence = "A second launch adds the partial sums of the end of K. It uses positions in the list of sorted tokens as
//   columns of the output."
// shows_when = "tokens are not sorted by their experts"
// names = ["window-of-routings"]
// says = []
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// macros = { BUG = 1 }
// operands.partial = { scratch = "M * TOP_K * N * 4" }
// [[launches]]
// symbol = "first_half"
// parameters = ["weights", "activations", "ids", "sorted_token_ids", "partial", "output",
//               "int32 M", "int32 N", "int32 K", "int32 TOP_K"]
// block = 128
// grid = "ceil(M * TOP_K * N, 128)"
// [[launches]]
// symbol = "fixup"
// parameters = ["sorted_token_ids", "partial", "output", "int32 M", "int32 N", "int32 TOP_K"]
// block = 128
// grid = "ceil(M * TOP_K * N, 128)"
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void first_half(const Q4_0* w, const Q8_1* x, const int* ids, const int* sorted, float* partial,
                                      float* y, int M, int N, int K, int top_k) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)M * top_k * N) return;
    const i64 at = i / N, n = i % N, slot = sorted[at];
    const int blocks = K / 32;
    const Q4_0* row = w + (ids[slot] * (i64)N + n) * blocks;
    const Q8_1* token = x + slot / top_k * blocks;
    y[slot * N + n] = terms(row, token, 0, blocks / 2);
    partial[i] = terms(row, token, blocks / 2, blocks);
}

extern "C" __global__ void fixup(const int* sorted, const float* partial, float* y, int M, int N, int top_k) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (i64)M * top_k * N) y[(BUG ? i / N : sorted[i / N]) * N + i % N] += partial[i];
}
