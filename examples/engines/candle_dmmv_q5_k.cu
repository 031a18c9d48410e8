// candle's dequantize_mul_mat_vec_q5_k (candle-kernels/src/quantized.cu): one token, float32, minima times sums.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q5_K"]
// semantics = "f32_apart"
// domain = { M = 1 }
// parameters = ["weights", "activations", "output", "int32 K"]
// block = 32
// grid = "N"
// macros.Q5_K = { dequantize_mul_mat_vec_q5_k = "product" }
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
