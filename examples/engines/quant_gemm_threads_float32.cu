// llama.cpp-quant-gemm's w4a16 and w8a16 kernels (include/gemm_cuda_naive.cuh): float32 activations.
// `build.py` beside this file lays the source into `built`.
//
// [gguf-verify]
// formats = ["Q4_0", "Q8_0"]
// semantics = "f32"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["activations", "weights", "output", "int32 M", "int32 N", "int32 K"]
// block = [16, 16]
// grid = ["ceil(N, 16)", "ceil(M, 16)"]
// [/gguf-verify]
#include "built/quant_gemm/include/gemm_cuda_naive.cuh"
