// candle's mul_mat_* (candle-kernels/src/quantized.cu): tiles of many tokens.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q2_K"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 M", "int32 ceil(K, 512) * 512", "int32 N"]
// block = [32, 4]
// grid = ["ceil(N, 128)", "ceil(M, 64)"]
// macros.Q4_0 = { mul_mat_q4_0 = "product" }
// macros.Q4_1 = { mul_mat_q4_1 = "product" }
// macros.Q2_K = { mul_mat_q2_K = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = 544
// [/gguf-verify]
#include "built/candle/quantized.cu"
