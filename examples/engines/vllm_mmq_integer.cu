// vLLM's mul_mat_* (csrc/gguf/mmq.cuh of vllm-gguf-plugin) for the CPU host; on a GPU, take vllm_products.py.
// `build.py` beside this file lays the sources into `built`. As its launchers choose, rows are checked.
//
// [gguf-verify]
// formats = ["Q5_0"]
// activations = "q8_1"
// term = "integers"
// parameters = [
//     "weights", "activations", "output", "int32 K", "int32 N", "int32 M", "int32 ceil(K, 512) * 512", "int32 N",
// ]
// block = [32, 4]
// grid = ["ceil(N, 32)", "ceil(M, 4)"]
// domain = { M = { most = 262140 } }
// macros.Q5_0 = { OF = "mul_mat_q5_0" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [/gguf-verify]
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace c10 {
using BFloat16 = __nv_bfloat16;
}
#include "built/vllm_gguf_plugin/csrc/cuda_compat.h"
#include "built/vllm_gguf_plugin/csrc/gguf/ggml-common.h"
#include "built/vllm_gguf_plugin/csrc/gguf/vecdotq.cuh"
#include "built/vllm_gguf_plugin/csrc/gguf/mmq.cuh"

extern "C" __global__ void product(const void* w, const void* x, float* y, int k, int n, int m, int padded, int rows) {
    OF<float, true>(w, x, y, k, n, m, padded, rows);
}
