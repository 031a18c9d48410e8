// [museum]
// source = "ggml-org/llama.cpp#13294 (with ids)"
// class = "race"
// essence = "The first warp loads the slot ids of a tile's outputs into shared memory, and all warps read them without
//   a barrier."
// shows_when = "another warp is faster than the first one"
// names = []
// says = ["race|hazard|unsynchroni[sz]ed|not deterministic"]
// [/museum]
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// computes = "experts"
// experts = { block_m = 8 }
// parameters = ["weights", "activations", "sorted_token_ids", "expert_ids", "num_tokens_post_padded", "output",
//               "int32 M", "int32 N", "int32 K", "int32 TOP_K"]
// block = 64
// grid = "ceil(min(M * TOP_K * 8, M * TOP_K + E * 7), 8) * ceil(N, 8)"
// macros = { BUG = 1 }
// [/gguf-verify]
#include "museum.cuh"

extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, const int* sorted, const int* experts, const int* used,
                                float* y, int M, int N, int K, int top_k) {
    __shared__ int slot[8];
    const int across = (N + 7) / 8, b = blockIdx.x / across;
    if (b * 8 >= used[0]) return;
    const int tx = threadIdx.x, t = tx / 8, blocks = K / 32;
    const i64 n = blockIdx.x % across * 8 + tx % 8;
    if (tx < 8) slot[tx] = sorted[b * 8 + tx];
    if (!BUG) __syncthreads();
    if (slot[t] >= M * top_k || n >= N) return;
    const Q4_0* row = w + (experts[b] * (i64)N + n) * blocks;
    y[(i64)slot[t] * N + n] = terms(row, x + slot[t] / top_k * blocks, 0, blocks);
}
