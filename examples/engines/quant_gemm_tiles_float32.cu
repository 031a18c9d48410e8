// llama.cpp-quant-gemm's gemm_w4a16_tiled_kernel (include/gemm_cuda_tiled.cuh): float32 activations.
// `build.py` beside this file lays the source into `built`.
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["activations", "weights", "output", "int32 M", "int32 N", "int32 K"]
// block = [32, 32]
// grid = ["ceil(N, 32)", "ceil(M, 32)"]
// [/gguf-verify]
#include "built/quant_gemm/include/gemm_cuda_tiled.cuh"
