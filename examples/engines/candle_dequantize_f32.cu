// candle's dequantize_block_*_f32 (candle-kernels/src/quantized.cu), in float32, rounded to float32.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
// computes = "dequantize"
// output = "float32"
// parameters = ["weights", "output", "int32 N * K if TYPE == 6 or TYPE == 7 else N * K / 32"]
// block = "256 if TYPE == 6 or TYPE == 7 else 32"
// grid = "ceil(N * K, 512 if TYPE == 6 or TYPE == 7 else 256)"
// macros.Q4_0 = { dequantize_block_q4_0_f32 = "product" }
// macros.Q4_1 = { dequantize_block_q4_1_f32 = "product" }
// macros.Q5_0 = { dequantize_block_q5_0_f32 = "product" }
// macros.Q5_1 = { dequantize_block_q5_1_f32 = "product" }
// macros.Q8_0 = { dequantize_block_q8_0_f32 = "product" }
// [arithmetic]
// Q4_0 = "float32_offset_mul_add"
// Q4_1 = "float32"
// Q5_0 = "float32"
// Q5_1 = "float32"
// Q8_0 = "float32"
// [/gguf-verify]
#include "built/candle/quantized.cu"
