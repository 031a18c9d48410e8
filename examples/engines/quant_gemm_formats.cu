// llama.cpp-quant-gemm's gemm_quant_kernel (kernels/gemm/gemm_quant_formats.cuh), launched as its gemm_*_q8_1 do.
// `build.py` beside this file lays the source into `built`. Its M is N here: outputs are [rows of weights][tokens].
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
// semantics = "q8_1"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["weights", "activations", "output", "int32 N", "int32 M", "int32 K"]
// block = [16, 16]
// grid = ["ceil(N, 16)", "ceil(M, 16)"]
// macros.Q4_0 = { OF = "block_q4_0, block_q8_1, vec_dot_q4_0_q8_1" }
// macros.Q4_1 = { OF = "block_q4_1, block_q8_1, vec_dot_q4_1_q8_1" }
// macros.Q5_0 = { OF = "block_q5_0, block_q8_1, vec_dot_q5_0_q8_1" }
// macros.Q5_1 = { OF = "block_q5_1, block_q8_1, vec_dot_q5_1_q8_1" }
// macros.Q8_0 = { OF = "block_q8_0, block_q8_1, vec_dot_q8_0_q8_1" }
// [operands.output]
// transposed = true
// [/gguf-verify]
#include "built/quant_gemm/kernels/gemm/gemm_quant_formats.cuh"
