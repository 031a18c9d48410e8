// vLLM's mul_mat_vec_q (csrc/gguf/mmvq.cuh of vllm-gguf-plugin) for the CPU host; on a GPU, take vllm_products.py.
// `build.py` beside this file lays the sources into `built`. The template's arguments are those of its launchers.
//
// [gguf-verify]
// formats = [
//     "Q4_0", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
//     "IQ1_M", "IQ4_NL", "IQ4_XS",
// ]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 M"]
// block = [32, 1]
// grid = ["N", "M"]
// domain = { M = { most = 16 } }
// macros.Q4_0 = { OF = "QK4_0, QI4_0, block_q4_0, VDR_Q4_0_Q8_1_MMVQ, vec_dot_q4_0_q8_1" }
// macros.Q5_0 = { OF = "QK5_0, QI5_0, block_q5_0, VDR_Q5_0_Q8_1_MMVQ, vec_dot_q5_0_q8_1" }
// macros.Q8_0 = { OF = "QK8_0, QI8_0, block_q8_0, VDR_Q8_0_Q8_1_MMVQ, vec_dot_q8_0_q8_1" }
// macros.Q2_K = { OF = "QK_K, QI2_K, block_q2_K, VDR_Q2_K_Q8_1_MMVQ, vec_dot_q2_K_q8_1" }
// macros.Q3_K = { OF = "QK_K, QI3_K, block_q3_K, VDR_Q3_K_Q8_1_MMVQ, vec_dot_q3_K_q8_1" }
// macros.Q4_K = { OF = "QK_K, QI4_K, block_q4_K, VDR_Q4_K_Q8_1_MMVQ, vec_dot_q4_K_q8_1" }
// macros.Q5_K = { OF = "QK_K, QI5_K, block_q5_K, VDR_Q5_K_Q8_1_MMVQ, vec_dot_q5_K_q8_1" }
// macros.Q6_K = { OF = "QK_K, QI6_K, block_q6_K, VDR_Q6_K_Q8_1_MMVQ, vec_dot_q6_K_q8_1" }
// macros.IQ2_XXS = { OF = "QK_K, QI2_XXS, block_iq2_xxs, 1, vec_dot_iq2_xxs_q8_1" }
// macros.IQ2_XS = { OF = "QK_K, QI2_XS, block_iq2_xs, 1, vec_dot_iq2_xs_q8_1" }
// macros.IQ2_S = { OF = "QK_K, QI2_S, block_iq2_s, 1, vec_dot_iq2_s_q8_1" }
// macros.IQ3_XXS = { OF = "QK_K, QI3_XXS, block_iq3_xxs, 1, vec_dot_iq3_xxs_q8_1" }
// macros.IQ3_S = { OF = "QK_K, QI3_XS, block_iq3_s, 1, vec_dot_iq3_s_q8_1" }
// macros.IQ1_M = { OF = "QK_K, QI1_M, block_iq1_m, 1, vec_dot_iq1_m_q8_1" }
// macros.IQ4_NL = { OF = "QK4_NL, QI4_NL, block_iq4_nl, VDR_Q4_0_Q8_1_MMVQ, vec_dot_iq4_nl_q8_1" }
// macros.IQ4_XS = { OF = "QK_K, QI4_XS, block_iq4_xs, 1, vec_dot_iq4_xs_q8_1" }
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
