// candle's dequantize_mul_mat_vec_*_cuda (candle-kernels/src/quantized.cu): one token, float32.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
// semantics = "f32"
// domain = { M = 1 }
// parameters = ["weights", "activations", "output", "int32 K", "int32 N"]
// block = 32
// grid = "N"
// macros.Q4_0 = { dequantize_mul_mat_vec_q4_0_cuda = "product" }
// macros.Q4_1 = { dequantize_mul_mat_vec_q4_1_cuda = "product" }
// macros.Q5_0 = { dequantize_mul_mat_vec_q5_0_cuda = "product" }
// macros.Q5_1 = { dequantize_mul_mat_vec_q5_1_cuda = "product" }
// macros.Q8_0 = { dequantize_mul_mat_vec_q8_0_cuda = "product" }
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
