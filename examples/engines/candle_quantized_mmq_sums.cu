// candle's mul_mat_* (candle-kernels/src/quantized.cu): tiles of many tokens; minima times stored sums.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q4_K", "Q5_K"]
// activations = "q8_1"
// term = "superblock_sums"
// parameters = [
//     "weights", "activations", "output", "int32 K", "int32 N", "int32 M", "int32 ceil(K, 512) * 512", "int32 N",
// ]
// block = [32, 4]
// grid = [
//     "ceil(N, 64 if TYPE == 14 or 6 <= TYPE and TYPE <= 8 else 128)",
//     "ceil(M, 128 if TYPE == 11 or 6 <= TYPE and TYPE <= 8 else 64)",
// ]
// macros.Q4_K = { mul_mat_q4_K = "product" }
// macros.Q5_K = { mul_mat_q5_K = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
