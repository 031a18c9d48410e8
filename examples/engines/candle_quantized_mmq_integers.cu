// candle's mul_mat_* (candle-kernels/src/quantized.cu): tiles of many tokens; the offset is subtracted from codes.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
//
// [gguf-verify]
// formats = ["Q5_0"]
// activations = "q8_1"
// term = "integers"
// parameters = [
//     "weights", "activations", "output", "int32 K", "int32 N", "int32 M", "int32 ceil(K, 512) * 512", "int32 N",
// ]
// block = [32, 4]
// grid = [
//     "ceil(N, 64 if TYPE == 14 or 6 <= TYPE and TYPE <= 8 else 128)",
//     "ceil(M, 128 if TYPE == 11 or 6 <= TYPE and TYPE <= 8 else 64)",
// ]
// macros.Q5_0 = { mul_mat_q5_0 = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/quantized.cu"
