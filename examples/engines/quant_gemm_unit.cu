// llama.cpp-quant-gemm's kernel_gemm_q4_0_q8_1_simple (tests/unit/test_gemm_q4.cu), launched as its test does.
// `build.py` beside this file lays the source into `built`. Its M is N here: outputs are [rows of weights][tokens].
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// domain = { M = { most = 4096 }, N = { most = 262144 } }
// parameters = ["weights", "activations", "output", "int32 N", "int32 M", "int32 K"]
// block = [16, 16]
// grid = ["ceil(N, 16)", "ceil(M, 16)"]
// [operands.output]
// transposed = true
// [/gguf-verify]
#include "built/quant_gemm/tests/unit/test_gemm_q4.cu"
