// llama.cpp-quant-gemm's fused kernel (kernels/gemm/gemm_fused.cuh): it quantizes half activations itself.
// `build.py` beside this file lays the source into `built`. Its M is N here: outputs are [rows of weights][tokens].
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// takes = "float16"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["weights", "activations", "output", "int32 N", "int32 M", "int32 K"]
// block = 512
// grid = ["ceil(N, 64)", "ceil(M, 4)"]
// shared = "4 * 128 * 32 * 2 + 4 * 128 * 36"
// [operands.output]
// transposed = true
// [/gguf-verify]
#include "built/quant_gemm/kernels/gemm/gemm_fused.cuh"
