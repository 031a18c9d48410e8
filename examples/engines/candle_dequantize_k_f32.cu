// candle's dequantize_block_*_K_f32 (candle-kernels/src/quantized.cu), in float32, rounded to float32.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
// computes = "dequantize"
// output = "float32"
// arithmetic = "float32"
// parameters = ["weights", "output"]
// block = "32 if TYPE == 12 else 64"
// grid = "ceil(N * K, 256)"
// macros.Q2_K = { dequantize_block_q2_K_f32 = "product" }
// macros.Q3_K = { dequantize_block_q3_K_f32 = "product" }
// macros.Q4_K = { dequantize_block_q4_K_f32 = "product" }
// macros.Q5_K = { dequantize_block_q5_K_f32 = "product" }
// macros.Q6_K = { dequantize_block_q6_K_f32 = "product" }
// [/gguf-verify]
#include "built/candle/quantized.cu"
