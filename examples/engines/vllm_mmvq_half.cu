// vLLM's mul_mat_vec_q (csrc/gguf/mmvq.cuh of vllm-gguf-plugin) for the CPU host; on a GPU, take vllm_products.py.
// `build.py` beside this file lays the sources into `built`. The template's arguments are those of its launchers.
//
// [gguf-verify]
// formats = ["Q4_1", "Q5_1"]
// semantics = "q8_1_half"
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 M"]
// block = [32, 1]
// grid = ["N", "M"]
// domain = { M = { most = 16 } }
// macros.Q4_1 = { OF = "QK4_0, QI4_1, block_q4_1, VDR_Q4_1_Q8_1_MMVQ, vec_dot_q4_1_q8_1" }
// macros.Q5_1 = { OF = "QK5_1, QI5_1, block_q5_1, VDR_Q5_1_Q8_1_MMVQ, vec_dot_q5_1_q8_1" }
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
#include "built/vllm_gguf_plugin/csrc/gguf/mmvq.cuh"

extern "C" __global__ void product(const void* w, const void* x, float* y, int k, int n, int m) {
    mul_mat_vec_q<float, OF>(w, x, y, k, n, m);
}
