// llama.cpp-quant-gemm's tiled w4a8 kernels (include/gemm_cuda_tiled.cuh, gemm_cuda_dp4a.cuh): 32 by 32 outputs.
// `build.py` beside this file lays the source into `built`.
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["activations", "weights", "output", "int32 M", "int32 N", "int32 K"]
// block = [32, 32]
// grid = ["ceil(N, 32)", "ceil(M, 32)"]
// [/gguf-verify]
#include "built/quant_gemm/include/gemm_cuda_tiled.cuh"
#include "built/quant_gemm/include/gemm_cuda_dp4a.cuh"
