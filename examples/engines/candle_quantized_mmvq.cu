// candle's mul_mat_vec_*_q8_1_cuda1 (candle-kernels/src/quantized.cu): one token.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
// semantics = "q8_1"
// domain = { M = 1 }
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 ceil(K, 512) * 512", "int32 N"]
// block = [32, 4]
// grid = "N"
// macros.Q4_0 = { mul_mat_vec_q4_0_q8_1_cuda1 = "product" }
// macros.Q4_1 = { mul_mat_vec_q4_1_q8_1_cuda1 = "product" }
// macros.Q5_0 = { mul_mat_vec_q5_0_q8_1_cuda1 = "product" }
// macros.Q5_1 = { mul_mat_vec_q5_1_q8_1_cuda1 = "product" }
// macros.Q8_0 = { mul_mat_vec_q8_0_q8_1_cuda1 = "product" }
// macros.Q2_K = { mul_mat_vec_q2_K_q8_1_cuda1 = "product" }
// macros.Q3_K = { mul_mat_vec_q3_K_q8_1_cuda1 = "product" }
// macros.Q4_K = { mul_mat_vec_q4_K_q8_1_cuda1 = "product" }
// macros.Q5_K = { mul_mat_vec_q5_K_q8_1_cuda1 = "product" }
// macros.Q6_K = { mul_mat_vec_q6_K_q8_1_cuda1 = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
