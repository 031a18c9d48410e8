// candle's dequantize_mul_mat_vec_*_k (candle-kernels/src/quantized.cu): one token, float32, minima times sums.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q2_K", "Q3_K", "Q4_K", "Q6_K"]
// semantics = "f32_apart"
// domain = { M = 1 }
// parameters = ["weights", "activations", "output", "int32 K", "int32 N"]
// block = 32
// grid = "N"
// macros.Q2_K = { dequantize_mul_mat_vec_q2_k = "product" }
// macros.Q3_K = { dequantize_mul_mat_vec_q3_k = "product" }
// macros.Q4_K = { dequantize_mul_mat_vec_q4_k = "product" }
// macros.Q6_K = { dequantize_mul_mat_vec_q6_k = "product" }
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
