// [museum]
// source = "ggml-org/llama.cpp#28151 (with ids)"
// class = "read outside"
// essence = "The workspace for sorted activations has room for whole tiles of tokens, but it contains slots (top_k per
//   token): the last tile of slots is read past the end."
// shows_when = "M · top_k is not a multiple of the tile's 8"
// names = ["outside-buffers"]
// says = ["reads? (outside|past)|out of bounds|past the end|outside its"]
// right = [["(ceil(M, 8) * 8 - M + M * TOP_K)", "ceil(M * TOP_K, 8) * 8"], ["BUG = 1", "BUG = 0"]]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// macros = { BUG = 1 }
// operands.workspace = { scratch = "(ceil(M, 8) * 8 - M + M * TOP_K) * K / 32 * 36" }
// [[launches]]
// symbol = "sort"
// parameters = ["activations", "sorted_token_ids", "workspace", "int32 M", "int32 K", "int32 TOP_K"]
// block = 128
// grid = "ceil(M * TOP_K * K / 32, 128)"
// [[launches]]
// symbol = "multiply"
// parameters = ["weights", "workspace", "ids", "sorted_token_ids", "output",
//               "int32 M", "int32 N", "int32 K", "int32 TOP_K"]
// block = 64
// grid = "ceil(M * TOP_K, 8) * ceil(N, 8)"
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void sort(const Q8_1* x, const int* sorted, Q8_1* to, int M, int K, int top_k) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const int blocks = K / 32;
    if (i < (i64)M * top_k * blocks) to[i] = x[sorted[i / blocks] / top_k * (i64)blocks + i % blocks];
}

extern "C" __global__ void multiply(const Q4_0* w, const Q8_1* x, const int* ids, const int* sorted, float* y, int M,
                                    int N, int K, int top_k) {
    __shared__ u32 staged[8][9];
    const int tx = threadIdx.x, t = tx / 8, blocks = K / 32, slots = M * top_k;
    const i64 across = (N + 7) / 8, at0 = blockIdx.x / across * 8, at = at0 + t, n = blockIdx.x % across * 8 + tx % 8;
    const i64 slot = at < slots ? sorted[at] : 0;
    float acc = 0.0f;
    for (int b = 0; b < blocks; ++b) {
        for (int j = tx; j < 72; j += 64)
            staged[j / 9][j % 9] = ((const u32*)&x[(at0 + j / 9) * blocks + b])[j % 9];
        __syncthreads();
        if (at < slots && n < N) acc += term(w[(ids[slot] * (i64)N + n) * blocks + b], *(const Q8_1*)staged[t]);
        __syncthreads();
    }
    if (at < slots && n < N) y[slot * N + n] = acc;
}
