// llama.cpp-quant-gemm's gemm_q4_0_q8_1_kernel and gemm_q8_0_q8_1_kernel (test_custom_mnk.cu), launched as it does.
// `build.py` beside this file lays the source into `built`. Its M is N here: outputs are [rows of weights][tokens].
//
// [gguf-verify]
// formats = ["Q4_0", "Q8_0"]
// semantics = "q8_1"
// domain = { M = { most = 4096 }, N = { most = 65535 } }
// parameters = ["weights", "activations", "output", "int32 N", "int32 M", "int32 K"]
// block = 32
// grid = ["ceil(M, 32)", "N"]
// [operands.output]
// transposed = true
// [/gguf-verify]
#include "built/quant_gemm/test_custom_mnk.cu"
