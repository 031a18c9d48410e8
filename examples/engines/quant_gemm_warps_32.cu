// llama.cpp-quant-gemm's warp kernels of 32 rows a block (kernels/gemm/gemm_warp_optimized.cuh, gemm_vectorized.cuh).
// `build.py` beside this file lays the source into `built`. Its M is N here: outputs are [rows of weights][tokens].
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["weights", "activations", "output", "int32 N", "int32 M", "int32 K"]
// block = 256
// grid = ["ceil(N, 32)", "M"]
// [operands.output]
// transposed = true
// [/gguf-verify]
#include "built/quant_gemm/kernels/gemm/gemm_warp_optimized.cuh"
#include "built/quant_gemm/kernels/gemm/gemm_vectorized.cuh"
