// llama.cpp-quant-gemm's gemm_q4_0_fp32_kernel and _v2 (python/quant_gemm/csrc/gemm_ops.cu), launched as it does.
// `build.py` beside this file lays the source into `built`. PyTorch, for whose host functions it is, is not needed.
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
// block = [32, 32]
// grid = ["ceil(N, 32)", "ceil(M, 32)"]
// include = ["quant_gemm_no_torch", "built/quant_gemm/kernels"]
// [/gguf-verify]
#include "built/quant_gemm/python/quant_gemm/csrc/gemm_ops.cu"
