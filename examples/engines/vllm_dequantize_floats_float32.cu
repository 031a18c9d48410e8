// vLLM's ggml_dequantize to float32 (csrc/gguf/dequantize.cuh of vllm-gguf-plugin) for the CPU host.
// `build.py` beside this file lays the sources into `built`. On a GPU, take vllm_dequantize.py.
//
// [gguf-verify]
// computes = "dequantize"
// formats = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]
// output = "float32"
// arithmetic = "float32"
// parameters = ["weights", "output", "int64 N * K"]
// block = "32"
// grid = "ceil(N * K, 256)"
// macros.IQ2_XXS = { OF = "dequantize_block_iq2_xxs(w, y)" }
// macros.IQ2_XS = { OF = "dequantize_block_iq2_xs(w, y)" }
// macros.IQ2_S = { OF = "dequantize_block_iq2_s(w, y)" }
// macros.IQ3_XXS = { OF = "dequantize_block_iq3_xxs(w, y)" }
// macros.IQ3_S = { OF = "dequantize_block_iq3_s(w, y)" }
// macros.IQ1_S = { OF = "dequantize_block_iq1_s(w, y)" }
// macros.IQ1_M = { OF = "dequantize_block_iq1_m(w, y)" }
// macros.IQ4_NL = { OF = "dequantize_block_iq4_nl(w, y)" }
// macros.IQ4_XS = { OF = "dequantize_block_iq4_xs(w, y)" }
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
