// candle's indexed_moe_forward_*_q8_1 (candle-kernels/src/quantized.cu): experts by ids.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
// computes = "experts"
// semantics = "q8_1"
// parameters = [
//     "weights", "activations", "ids", "output", "int32 N", "int32 K", "int32 M", "int32 TOP_K",
//     "int32 ceil(K, 512) * 512", "int32 1",
// ]
// block = [32, 4]
// grid = ["N", "M", "TOP_K"]
// domain = { M = { most = 65535 } }
// macros.Q8_0 = { indexed_moe_forward_q8_0_q8_1 = "product" }
// macros.Q2_K = { indexed_moe_forward_q2k_q8_1 = "product" }
// macros.Q3_K = { indexed_moe_forward_q3k_q8_1 = "product" }
// macros.Q4_K = { indexed_moe_forward_q4k_q8_1 = "product" }
// macros.Q5_K = { indexed_moe_forward_q5k_q8_1 = "product" }
// macros.Q6_K = { indexed_moe_forward_q6k_q8_1 = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
