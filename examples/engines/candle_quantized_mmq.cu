// candle's mul_mat_* (candle-kernels/src/quantized.cu): tiles of many tokens; minima of superblocks times codes.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q6_K"]
// semantics = "q8_1"
// parameters = [
//     "weights", "activations", "output", "int32 K", "int32 N", "int32 M", "int32 ceil(K, 512) * 512", "int32 N",
// ]
// block = [32, 4]
// grid = [
//     "ceil(N, 64 if TYPE == 14 or 6 <= TYPE and TYPE <= 8 else 128)",
//     "ceil(M, 128 if TYPE == 11 or 6 <= TYPE and TYPE <= 8 else 64)",
// ]
// macros.Q4_0 = { mul_mat_q4_0 = "product" }
// macros.Q4_1 = { mul_mat_q4_1 = "product" }
// macros.Q5_1 = { mul_mat_q5_1 = "product" }
// macros.Q8_0 = { mul_mat_q8_0 = "product" }
// macros.Q2_K = { mul_mat_q2_K = "product" }
// macros.Q3_K = { mul_mat_q3_K = "product" }
// macros.Q6_K = { mul_mat_q6_K = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
