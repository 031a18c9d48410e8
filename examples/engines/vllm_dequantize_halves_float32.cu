// vLLM's ggml_dequantize to float32 (csrc/gguf/dequantize.cuh of vllm-gguf-plugin) for the CPU host.
// `build.py` beside this file lays the sources into `built`. On a GPU, take vllm_dequantize.py.
//
// [gguf-verify]
// computes = "dequantize"
// formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
// output = "float32"
// arithmetic = "float16"
// parameters = ["weights", "output", "int64 N * K"]
// block = "256 if TYPE < 10 else 32 if TYPE == 12 else 64"
// grid = "ceil(N * K, 512 if TYPE < 10 else 256)"
// macros.Q4_0 = { OF = "dequantize_block<QK4_0, QR4_0, dequantize_q4_0>(w, y, values)" }
// macros.Q4_1 = { OF = "dequantize_block<QK4_1, QR4_1, dequantize_q4_1>(w, y, values)" }
// macros.Q5_0 = { OF = "dequantize_block<QK5_0, QR5_0, dequantize_q5_0>(w, y, values)" }
// macros.Q5_1 = { OF = "dequantize_block<QK5_1, QR5_1, dequantize_q5_1>(w, y, values)" }
// macros.Q8_0 = { OF = "dequantize_block<QK8_0, QR8_0, dequantize_q8_0>(w, y, values)" }
// macros.Q2_K = { OF = "dequantize_block_q2_K(w, y)" }
// macros.Q3_K = { OF = "dequantize_block_q3_K(w, y)" }
// macros.Q4_K = { OF = "dequantize_block_q4_K(w, y)" }
// macros.Q5_K = { OF = "dequantize_block_q5_K(w, y)" }
// macros.Q6_K = { OF = "dequantize_block_q6_K(w, y)" }
// [/gguf-verify]
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

namespace c10 {
using BFloat16 = __nv_bfloat16;
}
#include "built/vllm_gguf_plugin/csrc/cuda_compat.h"
#include "built/vllm_gguf_plugin/csrc/gguf/ggml-common.h"
#include "built/vllm_gguf_plugin/csrc/gguf/dequantize.cuh"

extern "C" __global__ void product(const void* w, float* y, long long values) { OF; }
